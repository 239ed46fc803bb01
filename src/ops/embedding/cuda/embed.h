#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Everything contiguous. Each sample has `prefix` positions for its puzzle row of puzzle_width elements, then `tokens`.
struct Embed {
  const int32_t* inputs;     // (samples, tokens)
  const float* table;        // (entries, width)
  const float* puzzle_rows;  // (samples, puzzle_width), or null where prefix is 0
  void* x;                   // (samples, prefix + tokens, width)
  int64_t samples, tokens, prefix, width, puzzle_width;
  float scale;
  Element element;  // of x
};

struct EmbedBackward {
  const void* grad_x;
  const int32_t* inputs;
  float* grad_table;
  float* grad_puzzle_rows;  // or null
  float* partial;           // (kEmbedParts, entries, width) scratch
  int64_t samples, tokens, prefix, width, puzzle_width, entries;
  float scale;
  Element element;  // of grad_x
};

// Number of partial sums of the rows before they are added up: a constant, so that it decides no result.
inline constexpr int kEmbedParts = 256;

// Whether the table's sums fit into the shared memory of the current device.
bool embed_backward_fits(int64_t entries, Element element);

// Start the kernels on the stream and return the error of the launch. Forward: one pass. Backward: one pass over grad_x
// that leaves kEmbedParts sums per entry in `partial`, and one that adds them up and reads the puzzle rows' positions.
cudaError_t launch(const Embed& params, cudaStream_t stream);
cudaError_t launch(const EmbedBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
