#pragma once
// Residual addition and RMSNorm without parameters, in one pass (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019). HRM and TRM use it post-norm.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

// y = h * rsqrt(mean(h^2) + eps) over the last dimension, h = x + residual.
//
// x, residual: the same shape (..., D), dtype and device; float32, bfloat16 or float16 (float64 on the CPU, for tests).
// Any strides: non-contiguous input is copied first. Returns y, contiguous, of the same shape and dtype. Rounds like
// the reference models: h is rounded to the input dtype, the norm is computed in float32 from the rounded h, and y is
// rounded once.
//
// Differentiable once; both inputs get the same gradient. Without gradient, only y is written. With one, y and one
// float32 factor per row are kept for the backward pass. Deterministic: no atomics. Runs on the current stream; can be
// captured. Throws c10::Error that names the shapes.
at::Tensor rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);

// The two halves, for a hand-written backward pass. The forward half returns y and rstd = rsqrt(mean(h^2) + eps), (...)
// float32. The backward half returns the gradient of h, which is also that of x and of residual:
//   rstd * (g - y * mean(g * y)),  g = grad_y (+ grad_y2, if a residual stream brings a second gradient)
// It is computed in float32 and rounded once. It reads y, so h need not be kept. Rounding y to 16 bits adds at most
// half a unit in the last place of y * mean(g * y). That is the part of the gradient along the row, which is small in
// wide rows.
std::tuple<at::Tensor, at::Tensor> rms_norm_residual_forward(const at::Tensor& x, const at::Tensor& residual,
                                                             double eps);
at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2 = {});

}  // namespace hrm::ops
