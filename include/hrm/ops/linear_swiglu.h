#pragma once
// The gate_up projection of a SwiGLU feed-forward layer with its gate in the product's epilogue (Shazeer, "GLU Variants
// Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// act = silu(gate) * up, [gate | up] = x @ weight^T.
//
// x: (..., D), float32, bfloat16 or float16 (float64 on the CPU). weight: (2F, D), x's dtype, the first F rows the
// gate's. Returns (..., F), contiguous. Rounding as at::linear followed by ops::swiglu: gate and up are rounded to the
// dtype before the gate is applied.
//
// Not differentiable: the functions below are parts of a hand-written backward pass (nn::mlp_sub_block). Deterministic;
// on the current stream; can be captured. On a Hopper GPU (compute capability 9.0), 16-bit inputs with D a multiple of
// 64 and F of 128 (256 in the backward pass) use one kernel, which never writes the bare product to memory. Anything
// else is a matrix product and ops::swiglu. Throws c10::Error that names the shapes.
at::Tensor linear_swiglu(const at::Tensor& x, const at::Tensor& weight);

// The same, and gate_up (..., 2F), which the backward pass reads.
std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward(const at::Tensor& x, const at::Tensor& weight);

// The gradient of gate_up, (..., 2F), from grad_out (..., D), the gradient of act @ weight_down^T with weight_down (D,
// F): swiglu_backward(grad_out @ weight_down, gate_up).
at::Tensor linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down, const at::Tensor& gate_up);

}  // namespace hrm::ops
