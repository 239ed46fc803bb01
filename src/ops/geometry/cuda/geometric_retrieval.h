#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kMostRetrievalAxes = 64;  // n: queries stay in shared memory
constexpr int kRetrievalRows = 8;       // rows that read a part of the bank together

// Contiguous. The candidates of a row are split into parts, own ones first; each part is mixed by a block, and the
// parts are put together by their largest score.
struct GeometricRetrieval {
  const float* query;        // (rows, axes)
  const float* resilience;   // (rows) or (1)
  const float* metric;       // (axes)
  const float* coords;       // (rows, own, axes), or null
  const void* states;        // (rows, own, width)
  const bool* mask;          // (rows, own), or null
  const float* bank_coords;  // (slots, axes), or null
  const void* bank_states;   // (slots, width)
  const int64_t* filled;     // (1)
  float* mixes;              // (rows, parts, width), sums of weight * state
  float* largest;            // (rows, parts), largest scores
  float* totals;             // (rows, parts), sums of weights
  float* y;                  // (rows, width)
  int64_t rows, axes, width, own, slots;
  int64_t own_part, bank_part;  // candidates of a part
  int own_parts, bank_parts;
  int64_t resilience_stride;  // 1 or 0
  float beta, eps;
  Element element;  // of the states
};

// Columns of a block.
int64_t retrieval_columns();

// Start both kernels on the stream and return the error of the launch.
cudaError_t launch(const GeometricRetrieval& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
