#pragma once
// The projection that ends a post-norm sub-block, with the residual and the norm in the product's epilogue
// (RMSNorm: Zhang and Sennrich, 2019).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// y = h * rsqrt(mean(h^2) + eps) over the last dimension, h = residual + x @ weight^T.
//
// x: (..., K), float32, bfloat16 or float16 (float64 on the CPU). weight: (D, K), residual: (..., D), of x's dtype.
// Returns (..., D), contiguous. Rounds like at::linear followed by ops::rms_norm_residual: the product and the sum are
// rounded to the dtype, the norm is float32, y is rounded once.
//
// Not differentiable. linear_rms_norm_forward is part of a hand-written backward pass (nn::mlp_sub_block);
// ops::rms_norm_backward computes the gradient of h from y and rstd. Deterministic. Runs on the current stream; can be
// captured. Throws c10::Error that names the shapes.
//
// On a Hopper GPU (compute capability 9.0), one kernel serves 16-bit inputs with D of 256 or 512 and K a multiple of
// 64. Anything else is a matrix product and ops::rms_norm_residual.
at::Tensor linear_rms_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps);

// Returns y and rstd (...), float32 (float64 for float64), the factor of each row.
std::tuple<at::Tensor, at::Tensor> linear_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                           const at::Tensor& residual, double eps);

// Returns y + addend, (..., D), contiguous; y itself is not kept. y is rounded before the sum, and the sum is rounded
// again. The result is the next input of a recursion that adds the same `addend` (..., D), of x's dtype, to its output
// each time. The fused kernel adds in its epilogue, unless there are at most 40 rows per multiprocessor. In that case,
// and without the fused kernel, a separate sum follows.
at::Tensor linear_rms_norm_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps,
                               const at::Tensor& addend);

}  // namespace hrm::ops
