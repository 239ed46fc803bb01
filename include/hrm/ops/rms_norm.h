#pragma once
// Residual addition and parameter-free RMSNorm in one pass (Zhang and Sennrich, "Root Mean Square Layer Normalization",
// 2019; used post-norm by HRM and TRM).

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// y = h * rsqrt(mean(h^2) + eps) over the last dimension, h = x + residual.
//
// x, residual: the same shape (..., D), dtype and device; float32, bfloat16 or float16 (float64 on the CPU, for tests).
// Any strides: what is not contiguous is copied first. Returns y, contiguous, same shape and dtype.
// Rounding is that of the reference models: h is rounded to the input dtype, the norm is computed in float32 from the
// rounded h, and y is rounded once.
//
// Differentiable once; both inputs get the same gradient. Where no gradient is needed, only y is written. Where one is
// needed, h and the float32 factor of each row are kept for the backward pass. Deterministic: no atomics. Runs on the
// current stream and can be captured. Throws c10::Error that names the shapes when the inputs do not fit.
at::Tensor rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);

}  // namespace hrm::ops
