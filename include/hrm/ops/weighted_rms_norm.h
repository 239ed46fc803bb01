#pragma once
// RMSNorm with a weight (Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467), as pre-norm
// language models use it in front of every sub-block.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

// y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension.
//
// x: (..., D), float32, bfloat16 or float16 (float64 for tests), any strides; non-contiguous input is copied first.
// weight: (D) float32 (float64 with float64 x). Returns y, contiguous, of x's shape and dtype, computed in float32 and
// rounded once. Differentiable once in x and in weight, whose gradient is summed in float32. Keeps x and one float32
// factor per row. Deterministic: no atomics. Runs on the current stream; can be captured. Throws c10::Error that names
// the shapes.
at::Tensor weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The same, in front of a sub-block f of a residual stream x + f(y).
struct NormedStream {
  at::Tensor y;
  at::Tensor x;  // x itself; use it for the addition. The norm's backward kernel then adds the gradient through y to
                 // that of the addition; otherwise autograd needs another pass over memory
};
NormedStream weighted_rms_norm_stream(const at::Tensor& x, const at::Tensor& weight, double eps);

// The two halves, for a hand-written backward pass. The forward half returns y and rstd = rsqrt(mean(x^2) + eps), (...)
// float32. The backward half returns the gradient of x, in its dtype,
//   rstd * (g - n * mean(g * n)) (+ grad_x),  g = grad_y * weight,  n = x * rstd
// computed in float32 and rounded once. grad_x is another gradient of x. It also returns the gradient of weight: the
// sum over rows of grad_y * n, float32; undefined without `needs_weight`.
std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                              const at::Tensor& rstd, const at::Tensor& weight,
                                                              const std::optional<at::Tensor>& grad_x = {},
                                                              bool needs_weight = true);

}  // namespace hrm::ops
