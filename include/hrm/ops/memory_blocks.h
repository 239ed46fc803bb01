#pragma once
// Pre-norm transformer blocks (attention without mask and positions, SwiGLU) over memories of a few vectors, applied
// several times in a row: the recurrence of a reasoning core (Wang et al., "Hierarchical Reasoning Model", arXiv
// 2506.21734). Shapes: B memories of T vectors, D width, H heads, F inner width of the SwiGLU, S steps.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace hrm::ops {

// One block: h = x + o(attention(qkv(norm(x)))), y = h + down(silu(gate) * up), [gate | up] = gate_up(norm(h)).
struct MemoryBlockWeights {
  at::Tensor attention_norm, mlp_norm;  // (D) float32 (float64 with a float64 state)
  at::Tensor q_norm, k_norm;            // (D / H), same dtype, both or none: RMSNorm of each head of q and k
  at::Tensor qkv, o, gate_up, down;     // (3D, D), (D, D), (2F, D), (D, F), in the state's dtype
};

struct MemoryBlocksOptions {
  int64_t heads = 0, steps = 0;
  double eps = 1e-6;  // of all norms
};

// Applies state = norm(blocks(state + extra + pos)) S times and returns the last state.
//
// state: (B, T, D), float32, bfloat16 or float16 (float64 for tests). extra: (B, D) and pos: (T, D), of its dtype.
// norm: (D), of the dtype of the blocks' norms. Not differentiable: the functions below are parts of a hand-written
// backward pass (nn::memory_blocks). Deterministic. Runs on the current stream; can be captured. Throws c10::Error that
// names the shapes.
//
// On a Hopper GPU, one kernel does all steps for 16-bit states with T <= 64, heads of 64, D 256 or 512, F = 3 D, and up
// to four blocks. It rounds like the single ops, with two exceptions. A norm's weight is applied and rounded before the
// product, and the norm's row factor is applied after it. The SwiGLU's down product is a sum of D / 64 rounded parts.
// Anything else uses the single ops.
at::Tensor memory_blocks(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                         const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                         const MemoryBlocksOptions& options);

// What the backward pass reads of one block, stacked over steps.
struct MemoryBlockSaved {
  at::Tensor x;        // (S, B, T, D), its input
  at::Tensor qkv;      // (S, B, T, 3D), before q_norm and k_norm
  at::Tensor mixed;    // (S, B, T, D), the attention output
  at::Tensor lse;      // (S, B, H, T) float32, see attention_forward
  at::Tensor h;        // (S, B, T, D)
  at::Tensor gate_up;  // (S, B, T, 2F)
};

struct MemoryBlocksSaved {
  std::vector<MemoryBlockSaved> blocks;
  at::Tensor last;  // (S, B, T, D), input of the final norm
};

std::tuple<at::Tensor, MemoryBlocksSaved> memory_blocks_forward(const at::Tensor& state, const at::Tensor& extra,
                                                                const at::Tensor& pos,
                                                                const std::vector<MemoryBlockWeights>& blocks,
                                                                const at::Tensor& norm,
                                                                const MemoryBlocksOptions& options);

struct MemoryBlocksGradients {
  at::Tensor state, extra, pos;  // same shapes and dtypes, but pos float32
  at::Tensor norm;               // (D) float32
  // Per block; q_norm and k_norm are undefined if the block has none.
  struct Block {
    at::Tensor attention_norm, mlp_norm, q_norm, k_norm;  // float32
  };
  std::vector<Block> blocks;
};

// The gradients, given that of the result, (B, T, D). Weight gradients of the products are added to `grad_weights`:
// float32 buffers of the weights' shapes, of which only qkv, o, gate_up and down are used. One product covers all
// steps. An undefined buffer gets no gradient.
MemoryBlocksGradients memory_blocks_backward(const at::Tensor& grad, const MemoryBlocksSaved& saved,
                                             const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                             const MemoryBlocksOptions& options,
                                             const std::vector<MemoryBlockWeights>& grad_weights);

}  // namespace hrm::ops
