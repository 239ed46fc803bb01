#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Contiguous rows: element i of row r is at r * dim + i. rows and dim are at least 1.
struct RmsNormForward {
  const void* x;
  const void* residual;
  void* y;
  float* rstd;  // or null: do not write
  int64_t rows;
  int64_t dim;
  float eps;
  Element element;
};

struct RmsNormBackward {
  const void* grad_y;
  const void* grad_y2;  // or null; added to grad_y
  const void* y;
  const float* rstd;
  void* grad;
  int64_t rows;
  int64_t dim;
  Element element;
};

// Start the kernel on the stream and return the error of the launch. One pass over memory where a row fits into the
// registers of a warp (dim a multiple of 16 bytes, up to 2048 16-bit or 1024 32-bit elements, pointers aligned to 16
// bytes); otherwise two passes over each row, the second of which finds it in the cache.
cudaError_t launch(const RmsNormForward& params, cudaStream_t stream);
cudaError_t launch(const RmsNormBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
