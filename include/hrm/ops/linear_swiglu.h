#pragma once
// The gate_up projection of a SwiGLU feed-forward layer, with the gate in the product's epilogue (Shazeer, "GLU
// Variants Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// act = silu(gate) * up, where [gate | up] = x @ weight^T.
//
// x: (..., D), float32, bfloat16 or float16 (float64 on the CPU). weight: (2F, D), x's dtype; the first F rows are the
// gate's. Returns (..., F), contiguous. Rounds like at::linear followed by ops::swiglu: gate and up are rounded to the
// dtype before the gate is applied.
//
// Not differentiable: the functions below are parts of a hand-written backward pass (nn::mlp_sub_block). Deterministic.
// Runs on the current stream; can be captured. Throws c10::Error that names the shapes.
//
// On a Hopper GPU (compute capability 9.0), one kernel serves 16-bit inputs with D a multiple of 64 and F of 128 (256
// in the backward pass). It never writes the product itself to memory. Anything else is a matrix product and
// ops::swiglu.
at::Tensor linear_swiglu(const at::Tensor& x, const at::Tensor& weight);

// Returns act and gate_up (..., 2F), which the backward pass reads.
std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward(const at::Tensor& x, const at::Tensor& weight);

// Returns the gradient of gate_up, (..., 2F): swiglu_backward(grad_out @ weight_down, gate_up). grad_out: (..., D), the
// gradient of act @ weight_down^T. weight_down: (D, F).
at::Tensor linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down, const at::Tensor& gate_up);

}  // namespace hrm::ops
