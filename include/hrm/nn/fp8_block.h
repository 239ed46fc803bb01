#pragma once
// The halves of a pre-norm block in 8 bits, each as one differentiable function over the fused ops
// (hrm/ops/fp8_block.h): what a product reads is quantised by the kernel that computes it. The layers of a block one by
// one are the oracle of their tests.

#include <ATen/core/Tensor.h>

#include "hrm/nn/linear.h"
#include "hrm/nn/norm.h"
#include "hrm/ops/qkv_heads.h"

namespace hrm::nn {

// The heads of qkv_proj(norm(x)), and x itself for the residual addition (see ops::NormedStream). x: (B, T, D).
// options: no norms of q and k. Requires qkv_proj.fp8_layer().
struct Fp8Heads {
  ops::QkvHeads heads;
  at::Tensor x;
};
Fp8Heads fp8_qkv_heads(const at::Tensor& x, const RmsNorm& norm, const Linear& qkv_proj, const ops::QkvSizes& sizes,
                       const ops::QkvHeadOptions& options);

// linear(norm(x)) and x itself. x: (..., D). Requires linear.fp8_layer().
ops::NormedStream fp8_normed_linear(const at::Tensor& x, const RmsNorm& norm, const Linear& linear);

// x + down(swiglu(gate_up(norm(x)))), (..., D) -> (..., D). Requires fp8_layer() of both. Saved for the backward pass,
// for each row: x and gate_up in the compute dtype; norm(x) and the activations are computed again.
at::Tensor fp8_swiglu_add(const at::Tensor& x, const RmsNorm& norm, const Linear& gate_up_proj,
                          const Linear& down_proj);

}  // namespace hrm::nn
