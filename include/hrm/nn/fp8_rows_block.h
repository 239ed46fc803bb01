#pragma once
// The halves of a pre-norm block over frozen e4m3 weights whose products run in 8 bits, with adapters beside them, each
// as one differentiable function over the fused ops (hrm/ops/fp8_rows_block.h): what a product reads is quantised by
// the kernel that computes it. The layers of a block one by one are the oracle of their tests.
//
// Layers are without a bias, with a weight in e4m3 and without DoRA: blocks ask Linear::takes_fp8_rows() first. On
// devices without such products the same is computed by the references.

#include <ATen/core/Tensor.h>

#include "hrm/nn/linear.h"
#include "hrm/nn/norm.h"
#include "hrm/ops/qkv_heads.h"

namespace hrm::nn {

// The heads of qkv_proj(norm(x)), and x itself for the residual addition (see ops::NormedStream). x: (B, T, D). The
// weights of the heads' norms, if there are any, get no gradient.
struct RowsHeads {
  ops::QkvHeads heads;
  at::Tensor x;
};
RowsHeads rows_qkv_heads(const at::Tensor& x, const RmsNorm& norm, const Linear& qkv_proj, const ops::QkvSizes& sizes,
                         const ops::QkvHeadOptions& options);

// linear(norm(x)) and x itself. x: (..., D).
ops::NormedStream rows_normed_linear(const at::Tensor& x, const RmsNorm& norm, const Linear& linear);

// x + down(swiglu(gate_up(norm(x)))), (..., D) -> (..., D). Saved for the backward pass, in the compute dtype: x and
// gate_up, and beside adapters norm(x), the activations and what the adapters' A give.
at::Tensor rows_swiglu_add(const at::Tensor& x, const RmsNorm& norm, const Linear& gate_up_proj,
                           const Linear& down_proj);

}  // namespace hrm::nn
