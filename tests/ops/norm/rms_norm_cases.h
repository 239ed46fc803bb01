#pragma once
// Checks of residual + RMSNorm that hold on every device.

#include <optional>
#include <tuple>

#include "hrm/ops/rms_norm.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct NormResult {
  at::Tensor y, grad_x, grad_residual;
};

// The formula in plain ATen operations, differentiated by ATen itself: an oracle that shares no line with ours.
inline at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& residual, double eps) {
  const at::Tensor h = x + residual;
  const at::Tensor wide = h.scalar_type() == at::kDouble ? h : h.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + eps)).to(h.scalar_type());
}

template <class Norm>
NormResult run_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& grad_y,
                    double eps) {
  const at::Tensor x_leaf = x.detach().requires_grad_();
  const at::Tensor residual_leaf = residual.detach().requires_grad_();
  const at::Tensor y = norm(x_leaf, residual_leaf, eps);
  const auto grads = torch::autograd::grad({y}, {x_leaf, residual_leaf}, {grad_y});
  return {y.detach(), grads[0], grads[1]};
}

// From this width on the gradient from the rounded y is held to plain ATen's gradient from h without any allowance.
constexpr int64_t kWideNorm = 24;

// What the rounding of y to its dtype can change in a narrow row, in units of expect_as_good's `terms`: half a unit in
// the last place of the gradient's part along the row, twice, since y stands there twice.
inline double rounding_of_y(const at::Tensor& rstd, const at::Tensor& y, const at::Tensor& grad_y) {
  const at::Tensor wide = grad_y.to(at::kDouble);
  const at::Tensor along = rstd * y.abs() * (wide * y).abs().mean(-1, true);
  return 2 * unit_roundoff(grad_y.scalar_type()) * along.max().item<double>() / 0x1p-22;
}

// Value and gradient against float64, with at most twice the error of plain ATen.
inline void expect_good_norm(const at::Tensor& x, const at::Tensor& residual, const std::string& what) {
  constexpr double kEps = 1e-5;
  const at::Tensor grad_y = normal(x.sizes(), 3, x.scalar_type(), x.device());
  const NormResult ours = run_norm(rms_norm_residual, x, residual, grad_y, kEps);
  const NormResult plain = run_norm(plain_norm, x, residual, grad_y, kEps);
  // The sum is rounded to the input dtype by definition, so float64 starts from the rounded sum.
  const at::Tensor h = (x + residual).to(at::kDouble);
  const NormResult exact = run_norm(plain_norm, h, at::zeros_like(h), grad_y.to(at::kDouble), kEps);
  expect_as_good(ours.y, plain.y, exact.y, what + ", y");
  // The gradient is a difference: rstd * grad_y less its part along the row.
  const at::Tensor rstd = at::rsqrt(h.square().mean(-1, true) + kEps);
  double terms = h.numel() > 0 ? (rstd * grad_y).abs().max().item<double>() : 0;
  if (h.numel() > 0 && h.size(-1) < kWideNorm) terms += rounding_of_y(rstd, exact.y, grad_y);
  expect_as_good(ours.grad_x, plain.grad_x, exact.grad_x, what + ", gradient", terms);
  expect_same_bits(ours.grad_x, ours.grad_residual, what + ", gradient of the residual");

  const at::NoGradGuard no_grad;
  expect_same_bits(rms_norm_residual(x, residual, kEps), ours.y, what + ", without gradient");
}

// A second gradient is added before anything is rounded.
inline void expect_good_second_gradient(at::ScalarType dtype, int64_t width, at::Device device) {
  const at::Tensor x = normal({15, width}, 1, dtype, device), residual = normal({15, width}, 2, dtype, device);
  const at::Tensor first = normal({15, width}, 3, dtype, device), second = normal({15, width}, 4, dtype, device);
  const auto [y, rstd] = rms_norm_residual_forward(x, residual, 1e-5);
  const at::Tensor ours = rms_norm_backward(first, y, rstd, second);
  const at::Tensor plain = rms_norm_backward(first, y, rstd) + rms_norm_backward(second, y, rstd);
  const at::Tensor wide = y.to(at::kDouble);
  const at::Tensor exact = rms_norm_backward(first.to(at::kDouble), wide, rstd.to(at::kDouble), second.to(at::kDouble));
  expect_as_good(ours, plain, exact, cat(dtype, " width ", width), exact.abs().max().item<double>());
}

// Widths on both sides of every choice that the kernels make.
inline std::vector<int64_t> norm_widths() {
  return {1, 3, 8, 24, 97, 128, 256, 384, 512, 1000, 1024, 2048, 2056, 5001};
}

}  // namespace hrm::ops::testing
