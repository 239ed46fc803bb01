#pragma once
// Linear layer whose weight gradient accumulates in float32, whatever the compute dtype.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// y = x @ weight_compute^T (+ bias rounded to x's dtype).
//
//   x: (..., in), float32, bfloat16 or float16 (float64 for tests).
//   weight_compute: (out, in), x's dtype; the copy that the matrix product reads.
//   master: (out, in), float32 (float64 with float64 x), the autograd leaf behind weight_compute, or the same tensor.
//   bias: (out), float32 leaf, or none.
//   Returns (..., out) in x's dtype.
//
// Backward: grad_x = gy @ weight_compute. The weight's gradient is not returned to autograd but added in float32:
//   grad_weight += gy^T @ x      grad_bias += sum over rows of gy
// So repeated uses of one weight (seven in TRM) are summed in float32; a bfloat16 leaf would round each sum.
// grad_weight (out, in) and grad_bias (out) are preallocated, in master's dtype. They are required if master or bias
// requires a gradient. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the
// shapes.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& grad_weight,
                  const std::optional<at::Tensor>& grad_bias);

// The same, with nn::ParameterSet's gradient buffers: master.grad() and bias.grad(). A leaf without one (a module used
// without a ParameterSet) gets a zeroed buffer.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const at::Tensor& bias = {});

// y = x @ weight^T, without a gradient. The rows of y may have any distance. y: (N, out), x: (N, in), weight:
// (out, in), of one dtype.
void linear_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight);

// grad_weight += grad_y^T @ x in place, summed in grad_weight's dtype: the weight's part of a hand-written backward
// pass. grad_weight: (out, in) float32 (or x's dtype). grad_y: (N, out), x: (N, in), of one dtype.
void linear_accumulate_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x);

// grad_y @ weight: the input's part of a hand-written backward pass. grad_y: (..., out), weight: (out, in), of one
// dtype. Returns (..., in).
at::Tensor linear_grad_x(const at::Tensor& grad_y, const at::Tensor& weight);
// grad_x += grad_y @ weight, in place; on a GPU in the product's epilogue. grad_x: (..., in), contiguous. On a GPU,
// large products of linear_accumulate_, linear_grad_x, this function and linear's forward pass use tuned algorithms
// (hrm/ops/gemm_tuning.h).
void linear_grad_x_add_(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight);

// leaf.grad(), created with zeros if there is none; undefined if the leaf requires no gradient.
at::Tensor gradient_buffer(const at::Tensor& leaf);

}  // namespace hrm::ops
