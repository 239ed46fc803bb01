#pragma once
// Residual addition and parameter-free RMSNorm in one pass (Zhang and Sennrich, "Root Mean Square Layer Normalization",
// 2019; used post-norm by HRM and TRM).

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

// y = h * rsqrt(mean(h^2) + eps) over the last dimension, h = x + residual.
//
// x, residual: the same shape (..., D), dtype and device; float32, bfloat16 or float16 (float64 on the CPU, for tests).
// Any strides: non-contiguous input is copied first. Returns y, contiguous, same shape and dtype. Rounding is that of
// the reference models: h is rounded to the input dtype, the norm is computed in float32 from the rounded h, and y is
// rounded once.
//
// Differentiable once; both inputs get the same gradient. Without gradient, only y is written. With one, y and the
// float32 factor of each row are kept for the backward pass. Deterministic: no atomics. Runs on the current stream and
// can be captured. Throws c10::Error that names the shapes if the inputs do not fit.
at::Tensor rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);

// The two halves, for a hand-written backward pass. forward gives y and rstd = rsqrt(mean(h^2) + eps), (...) float32.
// backward gives the gradient of h, and so of x and of residual:
//   rstd * (g - y * mean(g * y)),  g = grad_y (+ grad_y2, if a residual stream brings a second gradient)
// in float32, rounded once. It reads y, so that h need not be kept. The rounding of y to 16 bits adds at most half a
// unit in the last place of y * mean(g * y), the part of the gradient along the row, which is small in wide rows.
std::tuple<at::Tensor, at::Tensor> rms_norm_residual_forward(const at::Tensor& x, const at::Tensor& residual,
                                                             double eps);
at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2 = {});

}  // namespace hrm::ops
