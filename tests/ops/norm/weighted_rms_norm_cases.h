#pragma once
// Checks of RMSNorm with a weight that hold on every device.

#include "hrm/ops/weighted_rms_norm.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct WeightedNormResult {
  at::Tensor y, grad_x, grad_weight;
};

// The formula in plain ATen operations, differentiated by ATen itself: an oracle that shares no line with ours.
inline NormedStream plain_weighted_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return {(wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight).to(x.scalar_type()), x.clone()};
}

// y and x both bring a gradient, as in a block.
template <class Norm>
WeightedNormResult run_weighted_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& grad_y, const at::Tensor& grad_x, double eps) {
  const at::Tensor x_leaf = x.detach().requires_grad_(), weight_leaf = weight.detach().requires_grad_();
  const NormedStream out = norm(x_leaf, weight_leaf, eps);
  EXPECT_EQ(out.x.sizes(), x.sizes());
  const auto grads = torch::autograd::grad({out.y, out.x}, {x_leaf, weight_leaf}, {grad_y, grad_x});
  return {out.y.detach(), grads[0], grads[1]};
}

// Value and gradients against float64, with at most twice the error of plain ATen.
inline void expect_good_weighted_norm(const at::Tensor& x, const std::string& what) {
  constexpr double kEps = 1e-5;
  const auto drawn = [&](uint64_t seed) { return normal(x.sizes(), seed, x.scalar_type(), x.device()); };
  const at::Tensor weight = normal({x.size(-1)}, 7, at::kFloat, x.device()), grad_y = drawn(3), grad_x = drawn(4);
  const WeightedNormResult ours = run_weighted_norm(weighted_rms_norm_stream, x, weight, grad_y, grad_x, kEps),
                           plain = run_weighted_norm(plain_weighted_norm, x, weight, grad_y, grad_x, kEps);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const WeightedNormResult exact =
      run_weighted_norm(plain_weighted_norm, wide(x), wide(weight), wide(grad_y), wide(grad_x), kEps);
  expect_as_good(ours.y, plain.y, exact.y, what + ", y");
  // Both gradients are sums whose terms may cancel.
  const at::Tensor rstd = at::rsqrt(wide(x).square().mean(-1, true) + kEps), n = wide(x) * rstd;
  const bool empty = x.numel() == 0;
  const double row = empty ? 0 : ((rstd * wide(grad_y) * weight).abs() + grad_x.abs()).max().item<double>(),
               column = empty ? 0 : (wide(grad_y) * n).abs().reshape({-1, x.size(-1)}).sum(0).max().item<double>();
  expect_as_good(ours.grad_x, plain.grad_x, exact.grad_x, what + ", gradient", row);
  expect_as_good(ours.grad_weight, plain.grad_weight, exact.grad_weight, what + ", gradient of the weight", column);

  const at::NoGradGuard no_grad;
  expect_same_bits(weighted_rms_norm(x, weight, kEps), ours.y, what + ", without gradient");
}

// Widths on both sides of every choice that the kernels make.
inline std::vector<int64_t> weighted_norm_widths() {
  return {1, 3, 8, 24, 97, 128, 264, 512, 768, 1000, 1024, 2048, 2056, 3001};
}

}  // namespace hrm::ops::testing
