#include "ops/gpu_testing.h"
#include "ops/qkv_heads_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(QkvHeadsGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_heads(c, dtype, at::kCUDA);
  }
}

TEST(QkvHeadsGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const bool norm : {false, true}) {
    expect_good_qkv_heads({.batch = 16, .length = 1024, .sizes = {12, 12, 64}, .norm = norm}, at::kBFloat16, at::kCUDA);
  }
}

// Gradients whose rows do not start at whole words, and such whose elements lie apart.
TEST(QkvHeadsGpu, GradientsOfAnyStride) {
  HRM_NEEDS_GPU();
  for (const bool norm : {false, true}) {
    const QkvCase c{.sizes = {4, 2, 64}, .norm = norm};
    const QkvInputs in(c, at::kBFloat16, at::kCUDA);
    const QkvHeadOptions options{in.cos, in.sin, in.q_weight, in.k_weight, 1e-4};
    const auto [want, want_q, want_k] = qkv_heads_backward(in.grad_q, in.grad_k, in.grad_v, in.qkv, options);
    const at::Tensor wide = at::zeros({2, 5, 4, 67}, in.grad_q.options());
    wide.narrow(3, 3, 64).copy_(in.grad_q);
    const at::Tensor apart = at::zeros({2, 5, 2, 128}, in.grad_q.options()).slice(3, 0, 128, 2);
    apart.copy_(in.grad_k);
    const auto [grad, grad_q, grad_k] = qkv_heads_backward(wide.narrow(3, 3, 64), apart, in.grad_v, in.qkv, options);
    expect_same_bits(grad, want, cat("norm ", norm));
    if (norm) {
      expect_same_bits(grad_q, want_q);
      expect_same_bits(grad_k, want_k);
    }
  }
}

TEST(QkvHeadsGpu, SameBitsEachTimeAndInAGraph) {
  HRM_NEEDS_GPU();
  for (const bool norm : {false, true}) {
    const QkvCase c{.batch = 4, .length = 300, .sizes = {6, 2, 64}, .norm = norm};
    const QkvInputs in(c, at::kBFloat16, at::kCUDA);
    const QkvHeadOptions options{in.cos, in.sin, in.q_weight, in.k_weight, 1e-4};
    const auto run = [&] {
      const at::NoGradGuard no_grad;
      const QkvHeads heads = qkv_heads_(in.qkv.clone(), c.sizes, options);
      const auto [grad, grad_q, grad_k] = qkv_heads_backward(in.grad_q, in.grad_k, in.grad_v, in.qkv, options);
      std::vector<at::Tensor> out{heads.q, heads.k, heads.v, grad};
      if (norm) out.insert(out.end(), {grad_q, grad_k});
      return out;
    };
    expect_same_each_time(run, 5, cat("norm ", norm));
    std::vector<at::Tensor> got;
    Captured captured([&] { got = run(); });
    in.qkv.copy_(normal(in.qkv.sizes(), 20, at::kBFloat16));
    in.grad_k.copy_(normal(in.grad_k.sizes(), 21, at::kBFloat16));
    captured.replay();
    const std::vector<at::Tensor> eager = run();
    for (size_t i = 0; i < eager.size(); ++i) expect_same_bits(got[i], eager[i], cat("norm ", norm, " result ", i));
  }
}

}  // namespace
}  // namespace hrm::ops
