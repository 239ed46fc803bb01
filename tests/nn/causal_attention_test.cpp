// Rotation and grouped heads against the plain formula.

#include "hrm/nn/causal_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/base/error.h"

namespace hrm::nn {
namespace {

TEST(RotatePairs, ValueAndGradient) {
  const RotaryTable table = make_rotary_table(5, 6, 10000, at::kCPU);
  const at::Tensor x = at::randn({2, 3, 5, 6}, at::kDouble).requires_grad_(), g = at::randn({2, 3, 5, 6}, at::kDouble);
  const auto halves = x.chunk(2, -1);
  const at::Tensor want =
      at::cat({halves[0] * table.cos - halves[1] * table.sin, halves[1] * table.cos + halves[0] * table.sin}, -1);
  (want * g).sum().backward();
  const at::Tensor want_grad = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  const at::Tensor got = rotate_pairs(x, table);
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12));
  (got * g).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), want_grad, 1e-12, 1e-12));
  // A row of the table for each sample, as a decoding step has it.
  const at::Tensor place = at::tensor({4, 1}, at::kLong);
  const RotaryTable rows{table.cos.index_select(0, place).view({2, 1, 1, 3}),
                         table.sin.index_select(0, place).view({2, 1, 1, 3})};
  const at::Tensor at_places = at::stack({x[0].select(1, 4), x[1].select(1, 1)}).unsqueeze(2);
  EXPECT_TRUE(at::allclose(rotate_pairs(at_places, rows),
                           at::stack({want[0].select(1, 4), want[1].select(1, 1)}).unsqueeze(2), 1e-12, 1e-12));
}

// softmax(q k^T / sqrt(hd)) v written out, each group of queries with its own head of keys.
at::Tensor plain_causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mask) {
  const int64_t share = q.size(1) / k.size(1);
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < q.size(1); ++h) {
    const at::Tensor scores = at::matmul(q.select(1, h), k.select(1, h / share).transpose(1, 2));
    const at::Tensor scaled = scores / std::sqrt(static_cast<double>(q.size(3)));
    const at::Tensor masked =
        mask.defined() ? scaled.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity()) : scaled;
    heads.push_back(at::matmul(at::softmax(masked, -1), v.select(1, h / share)));
  }
  return at::stack(heads, 1);
}

TEST(GroupedAttention, ValueAndGradient) {
  for (const int64_t kv_heads : {1, 2, 4}) {
    for (const int64_t window : {-1, 0, 3}) {  // -1: not causal
      const auto leaf = [](int64_t heads) { return at::randn({2, heads, 7, 6}, at::kDouble).requires_grad_(); };
      const at::Tensor q = leaf(4), k = leaf(kv_heads), v = leaf(kv_heads), g = at::randn({2, 4, 7, 6}, at::kDouble);
      const at::Tensor full = at::ones({7, 7}, at::kBool).tril();
      const at::Tensor wanted_mask = window < 0   ? at::Tensor()
                                     : window > 0 ? full.logical_and(at::ones({7, 7}, at::kBool).triu(1 - window))
                                                  : full;
      (plain_causal_attention(q, k, v, wanted_mask) * g).sum().backward();
      std::vector<at::Tensor> wanted;
      for (const at::Tensor* t : {&q, &k, &v}) {
        wanted.push_back(t->grad().clone());
        t->mutable_grad() = at::Tensor();
      }
      const at::Tensor mask = window > 0 ? wanted_mask : at::Tensor();
      const at::Tensor got = grouped_attention(q, k, v, mask, window == 0);
      EXPECT_TRUE(at::allclose(got, plain_causal_attention(q, k, v, wanted_mask), 1e-10, 1e-10))
          << kv_heads << " " << window;
      (got * g).sum().backward();
      const at::Tensor* leaves[] = {&q, &k, &v};
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::allclose(leaves[i]->grad(), wanted[i], 1e-10, 1e-10)) << kv_heads << " " << window << " " << i;
      }
    }
  }
}

TEST(CausalAttention, RefusesHeadsThatDoNotDivide) {
  EXPECT_THROW(CausalAttention({.width = 12, .heads = 3, .kv_heads = 2, .head_dim = 4}, at::kCPU), Error);
}

}  // namespace
}  // namespace hrm::nn
