#pragma once
// Transformer blocks applied repeatedly to a memory of a few vectors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/norm.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::nn {

// Repeats state = norm(blocks(state + extra + pos)) `steps` times. `state` (B, T, D) and `extra` (B, D) are in the
// compute dtype, `pos` (T, D) is a float32 parameter. Attention is not causal. Differentiable once, with respect to all
// of these and the parameters.
//
// Blocks with SwiGLU and as many key heads as query heads use ops::memory_blocks: one autograd node for all steps, one
// GEMM per weight gradient. With TransformerBlockOptions::recompute it saves only its inputs and recomputes the steps
// bit-identically. Other blocks, and all blocks with the reference backend, run one after the other.
at::Tensor memory_blocks(const std::vector<std::shared_ptr<TransformerBlock>>& blocks, const RmsNorm& norm,
                         const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos, int64_t steps);

}  // namespace hrm::nn
