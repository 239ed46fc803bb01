#pragma once
// Weights in e4m3 with a scale for each row, as they stand and transposed (hrm/ops/fp8_rows.h). No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kFp8MaxRowWeights = 64;

// Matrices of one dtype, each rounded to `rounded` first: `element`, or anything for f32. Sizes are multiples of 16,
// and pointers to matrices are aligned to 16 bytes.
struct Fp8WeightRows {
  const void* from[kFp8MaxRowWeights];          // (rows, columns)
  void* values[kFp8MaxRowWeights];              // (rows, columns)
  void* transposed[kFp8MaxRowWeights];          // (columns, rows)
  float* scales[kFp8MaxRowWeights];             // (rows)
  float* transposed_scales[kFp8MaxRowWeights];  // (columns)
  float* maxima[kFp8MaxRowWeights];             // (rows + columns), zero at first
  int32_t rows[kFp8MaxRowWeights], columns[kFp8MaxRowWeights];
  int32_t first_block[kFp8MaxRowWeights + 1];  // block b works on the matrix i with first_block[i] <= b < [i + 1]
  float* slots;                                // wide: the amax of row i is raised to the largest size of matrix i
  int32_t count;
  Element element, rounded;

  // Adds the arrays of one matrix, whose sizes are given. count is below kFp8MaxRowWeights.
  void add(int64_t height, int64_t width);
};
static_assert(sizeof(Fp8WeightRows) <= 4096);

// Starts two kernels on the stream, of which the first one finds the maxima; returns the error of the launches.
cudaError_t launch(const Fp8WeightRows& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
