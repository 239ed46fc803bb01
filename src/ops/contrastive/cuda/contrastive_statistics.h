#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Shapes and symbols as in hrm/ops/contrastive_statistics.h: R rows, S slots, m, d.
struct ContrastiveStatistics {
  const float* x;           // (R, m)
  const float* o;           // (R, d)
  const float* log_sum;     // (R)
  const float* scales;      // (R)
  const float* keys;        // (S, m)
  const float* key_norms;   // (S)
  const float* resilience;  // (S)
  const void* values;       // (S, d)
  const int64_t* filled;    // 0-dim, or null: all slots
  float* slot_parts;        // (parts, S, columns()): sums over a part of the rows
  float* row_parts;         // (slot_tiles(), R): sums over a tile of slots
  float* slot_sums;         // (S, columns())
  float* row_sums;          // (R)
  int rows, slots, coords, width, parts;
  float gamma, retrieval_beta, cost_eps;
  Element element;  // of values: f32 or f16

  // Of a slot: sum w c, sum e, sum e X (m), sum w o (d).
  int columns() const { return 2 + coords + width; }
  int slot_tiles() const;
};

// Into how many parts the rows are best cut on the current device.
int row_parts(int rows, int slots);

// Whether the kernels do this size: m <= 32, d <= 64.
bool fits(const ContrastiveStatistics& params);

// Starts the kernels on the stream and returns the error of the launch.
cudaError_t launch(const ContrastiveStatistics& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
