#pragma once
// The gate of a SwiGLU feed-forward layer in one pass (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// silu(gate) * up, with gate_up (..., 2F) = [gate | up] -> (..., F).
//
// gate_up: float32, bfloat16 or float16 (float64 for tests), any strides: what is not contiguous is copied first.
// Computed in float32; rounded to the dtype after silu and after the product, as plain ATen does.
// Differentiable once, keeping gate_up alone. Deterministic; on the current stream; can be captured. Throws c10::Error
// that names the shape.
at::Tensor swiglu(const at::Tensor& gate_up);

// The gradient of gate_up, (..., 2F), for grad_act, the gradient of swiglu(gate_up). Rounded once.
at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up);

}  // namespace hrm::ops
