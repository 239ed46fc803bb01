#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

enum class AugmentRule : int { none, sudoku, dihedral, arc };

// Contiguous rows of `cells` tokens.
struct AugmentParams {
  const int32_t* table_inputs;
  const int32_t* table_labels;
  const int64_t* picks;  // (rows, 3): row of the tables, sample, identifier
  int32_t* inputs;       // (rows, cells)
  int32_t* labels;
  int32_t* identifiers;  // (rows)
  int64_t rows;
  int64_t cells;
  uint64_t seed;
  AugmentRule rule;
  int side;      // rows of a grid
  int box_rows;  // of a Sudoku
  int box_cols;
};

// A warp for each row.
cudaError_t launch(const AugmentParams& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
