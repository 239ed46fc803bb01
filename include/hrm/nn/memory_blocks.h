#pragma once
// Transformer blocks over a memory of a few vectors, applied several times in a row.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/norm.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::nn {

// `steps` times state = norm(blocks(state + extra + pos)). state (B, T, D) and extra (B, D) in the compute dtype, pos
// (T, D) a float32 parameter. Every position sees all of its memory. Differentiable once, in all of these and the
// parameters.
//
// Blocks of attention with as many heads of keys as of queries and SwiGLU go through ops::memory_blocks: one node of
// autograd for all steps, one product for each weight's gradient; with TransformerBlockOptions::recompute it keeps its
// inputs alone and computes the steps again, with the same bits. Others, and all with backend reference, one after the
// other.
at::Tensor memory_blocks(const std::vector<std::shared_ptr<TransformerBlock>>& blocks, const RmsNorm& norm,
                         const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos, int64_t steps);

}  // namespace hrm::nn
