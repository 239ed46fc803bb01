#pragma once
// The gate of a SwiGLU feed-forward layer, in one pass (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// silu(gate) * up, where gate_up (..., 2F) = [gate | up]. Returns (..., F).
//
// gate_up: float32, bfloat16 or float16 (float64 for tests), any strides; non-contiguous input is copied first.
// Computed in float32; rounded to the dtype after silu and after the product, like plain ATen. Differentiable once;
// keeps only gate_up. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the
// shape.
at::Tensor swiglu(const at::Tensor& gate_up);

// The gradient of gate_up, (..., 2F), where grad_act is the gradient of swiglu(gate_up). Rounded once.
at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up);

}  // namespace hrm::ops
