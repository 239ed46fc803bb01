#pragma once
// Blocks over a few vectors, applied several times in a row by one kernel, for Hopper. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kMaxMemoryBlocks = 4;

// Weights of one block, and what its backward pass needs. N = batch * length vectors; the latter are stacked, (steps,
// N, ...), and null where nobody needs them.
struct MemoryBlock {
  const float* attention_norm;  // (width)
  const float* mlp_norm;        // (width)
  const float* q_norm;          // (64), or null: no norm of queries and keys
  const float* k_norm;
  const void* qkv;      // (3 * width, width)
  const void* o;        // (width, width)
  const void* gate_up;  // (2 * inner, width)
  const void* down;     // (width, inner)
  void* saved_x;        // (steps, N, width), the block's input
  void* saved_qkv;      // (steps, N, 3 * width)
  void* saved_mixed;    // (steps, N, width)
  float* saved_lse;     // (steps, batch, heads, length)
  void* saved_h;        // (steps, N, width), between attention and feed-forward
  void* saved_gate_up;  // (steps, N, 2 * inner)
};

// `steps` times: state = norm(blocks(state + extra + pos)).
struct MemoryBlocks {
  const void* state;  // (batch, length, width)
  const void* extra;  // (batch, width)
  const void* pos;    // (length, width)
  const float* norm;  // (width)
  void* out;          // (batch, length, width)
  void* saved_last;   // (steps, N, width), the norm's input, or null
  MemoryBlock blocks[kMaxMemoryBlocks];
  int64_t batch;
  int64_t inner;
  int length;
  int width;
  int count;  // of blocks
  int steps;
  float eps;
  Element element;  // bf16 or f16
};

// Whether the current device and the sizes suit: Hopper, heads of 64, a width of 256 or 512, inner 3 * width, 1 <=
// length <= 64, at most kMaxMemoryBlocks.
bool memory_blocks_fits(int64_t length, int64_t width, int64_t inner, int64_t heads, int64_t count);
cudaError_t launch(const MemoryBlocks& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
