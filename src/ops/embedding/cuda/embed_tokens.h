#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct EmbedTokensBackward {
  const void* grad_x;    // (tokens, width)
  const int64_t* ids;    // (tokens), sorted
  const int64_t* order;  // (tokens), where each stood before
  float* grad_table;     // (entries, width), added to
  float* partial;        // (2, pieces, width) scratch
  int64_t tokens, width;
  Element element;  // of grad_x
};

// One block sums this many neighbours in the sorted order.
inline constexpr int kEmbedPiece = 32;
inline int64_t embed_pieces(int64_t tokens) {
  return (tokens + kEmbedPiece - 1) / kEmbedPiece;
}

// Starts the kernels on the stream and returns the error of the launch: one sums the rows of a piece, entry by entry,
// the other adds up the entries that are in more than one piece.
cudaError_t launch(const EmbedTokensBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
