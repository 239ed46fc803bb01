#pragma once
// What the ranks tell each other in a step of the puzzle task, beside gradients and metrics. PuzzleTask calls these
// with its tensors; a plan for many ranks with tensors of the same sizes that have no memory. Device work; throw as
// Comm.

#include <ATen/core/Tensor.h>

#include "hrm/parallel/comm.h"

namespace hrm::tasks {

// The rows that each rank takes from the pool: (ranks) int64, in the order of ranks. `taken`: (1) int64.
at::Tensor gather_taken(parallel::Comm& comm, const at::Tensor& taken);

// Gradients of rows of the puzzle embedding.
struct EmbeddingRows {
  at::Tensor identifiers;  // (n) int32
  at::Tensor gradients;    // (n, puzzle_emb_ndim) float32
};
// Those of all ranks, one rank after the other; each has as many.
EmbeddingRows gather_embedding_rows(parallel::Comm& comm, const EmbeddingRows& own);

}  // namespace hrm::tasks
