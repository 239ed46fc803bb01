#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Contiguous rows: element i of row r is at r * dim + i. rows and dim are at least 1.
struct WeightedRmsNormForward {
  const void* x;
  const float* weight;
  void* y;
  float* rstd;  // or null: do not write
  int64_t rows, dim;
  float eps;
  Element element;
};

struct WeightedRmsNormBackward {
  const void* grad_y;
  const void* x;
  const void* grad_x2;  // or null; added to the gradient
  const float* rstd;
  const float* weight;
  void* grad_x;
  float* partial;      // (kNormParts, dim) scratch, or null with grad_weight
  float* grad_weight;  // (dim), or null: not wanted
  int64_t rows, dim;
  Element element;
};

// Number of partial sums of the rows before they are added up: a constant, so that it decides no result.
inline constexpr int kNormParts = 528;

// Start the kernels on the stream and return the error of the launch. Rows that fit into the registers of a warp (dim a
// multiple of 16 bytes, up to 2048 16-bit or 1024 32-bit elements, pointers aligned to 16 bytes) are read once; others
// twice, and in the backward pass a third time for the weight.
cudaError_t launch(const WeightedRmsNormForward& params, cudaStream_t stream);
cudaError_t launch(const WeightedRmsNormBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
