#pragma once
// The two halves of a post-norm block, each as one differentiable function over the fused ops. They save only the
// values that are expensive to recompute, and add the residual's gradient in a GEMM epilogue. The plain formula in
// block.cpp is the oracle of their tests (ops.backend=reference).

#include <ATen/core/Tensor.h>

#include "hrm/nn/attention.h"
#include "hrm/nn/swiglu.h"

namespace hrm::nn {

// y = rms(h + o_proj(attention(qkv_proj(h)))), (B, L, D) -> (B, L, D). Saved for the backward pass, in units of B*L*D
// elements of the compute dtype: h 1, qkv 3, attention output 1, y 1. Sequences that the short attention kernel does
// not support (ops::attention_fits) use ops::attention.
at::Tensor attention_sub_block(const at::Tensor& h, const Attention& attention, double eps);

// Position 0 of attention_sub_block, (B, L, D) -> (B, D), without gradient. The Q values of a segment need no more of
// the last block. The projection and the norm run on B rows instead of B*L.
at::Tensor attention_first_position(const at::Tensor& h, const Attention& attention, double eps);

// y = rms(h + down_proj(silu(gate) * up)), [gate, up] = gate_up_proj(h). Saved: h 1, gate_up 2 I / D, the hidden
// activation I / D, y 1. With a convolution the gate passes through it (hrm/ops/conv_swiglu.h), h must be (B, L, D),
// and the same is saved.
at::Tensor mlp_sub_block(const at::Tensor& h, const SwiGLU& mlp, double eps);

// y + addend, without gradient. addend (..., D), shaped like h.
at::Tensor mlp_sub_block_add(const at::Tensor& h, const SwiGLU& mlp, double eps, const at::Tensor& addend);

}  // namespace hrm::nn
