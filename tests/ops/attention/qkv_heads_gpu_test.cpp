#include "hrm/ops/linear.h"
#include "ops/attention/qkv_heads_cases.h"
#include "ops/gpu_testing.h"
#include "ops/with_tiles.h"

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

// By the kernel that turns heads of 64 in the product's registers wherever it fits, and as the sizes decide.
TEST(QkvHeadsGpu, OfAProjection) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_projection(c, 24, dtype, at::kCUDA);
    const WithTiles with_tiles;
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_projection(c, 72, dtype, at::kCUDA);
    // Heads that end inside of a tile, rows that do, more tiles than blocks, stages that do not come round and that do.
    for (const QkvSizes sizes : {QkvSizes{1, 1, 64}, QkvSizes{3, 2, 64}, QkvSizes{6, 3, 64}}) {
      expect_good_qkv_projection({.batch = 3, .length = 77, .sizes = sizes}, 64, dtype, at::kCUDA);
      expect_good_qkv_projection({.batch = 2, .length = 64, .sizes = sizes}, 328, dtype, at::kCUDA);
    }
    expect_good_qkv_projection({.batch = 60, .length = 99, .sizes = {12, 12, 64}}, 200, dtype, at::kCUDA);
  }
}

TEST(QkvHeadsGpu, OfAProjectionLarge) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_good_qkv_projection({.batch = 16, .length = 1024, .sizes = {12, 12, 64}}, 768, dtype, at::kCUDA);
  }
}

// What the product alone, rounded, and the rotation of its rows give, but for the order of a multiply-add; values to
// the bit. The same each time, in a graph and from misaligned memory.
TEST(QkvHeadsGpu, TurnedByTheProductIsTurnedAfterIt) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  const QkvSizes sizes{6, 3, 64};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const QkvInputs in({.batch = 20, .length = 130, .sizes = sizes}, dtype, at::kCUDA);
    const at::Tensor x = normal({20, 130, 320}, 8, dtype, at::kCUDA), weight = normal({768, 320}, 9, dtype, at::kCUDA);
    const at::Tensor want = linear(x, weight, weight);
    qkv_heads_rotate_(want, sizes, in.cos, in.sin);
    const auto run = [&] { return std::vector<at::Tensor>{qkv_heads_product(x, weight, sizes, in.cos, in.sin)}; };
    const at::Tensor first = run()[0];
    const double ulp = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    EXPECT_TRUE(at::allclose(first, want, ulp, 1e-5)) << dtype << ": " << describe_differences(first, want);
    expect_same_bits(first.narrow(2, 9 * 64, 3 * 64), want.narrow(2, 9 * 64, 3 * 64), cat(dtype, " values"));
    expect_same_each_time(run, 10, cat(dtype));
    at::Tensor got;
    Captured captured([&] { got = run()[0]; });
    x.copy_(normal(x.sizes(), 20, dtype));
    captured.replay();
    expect_same_bits(got, run()[0], cat(dtype, " in a graph"));
    const at::Tensor shifted = at::empty({x.numel() + 1}, x.options()).slice(0, 1).view(x.sizes());
    expect_same_bits(qkv_heads_product(shifted.copy_(x), weight, sizes, in.cos, in.sin), got,
                     cat(dtype, " misaligned"));
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

// Norms that are not trained: the same gradient of the rows, and nothing else.
TEST(QkvHeadsGpu, FrozenNorms) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t length : {1, 5, 700}) {
      const QkvCase c{.batch = 3, .length = length, .sizes = {6, 2, 128}, .norm = true};
      const QkvInputs in(c, dtype, at::kCUDA);
      const QkvHeadOptions options{in.cos, in.sin, in.q_weight, in.k_weight, 1e-4};
      const auto [want, want_q, want_k] = qkv_heads_backward(in.grad_q, in.grad_k, in.grad_v, in.qkv, options);
      const auto [grad, grad_q, grad_k] = qkv_heads_backward(in.grad_q, in.grad_k, in.grad_v, in.qkv, options, false);
      expect_same_bits(grad, want, cat(dtype, " length ", length));
      EXPECT_TRUE(want_q.defined() && want_k.defined());
      EXPECT_FALSE(grad_q.defined() || grad_k.defined());
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
