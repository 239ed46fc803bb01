#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct SumRows {
  const void* x;         // (any, width)
  const int32_t* from;   // (rows, each), of x; -1: none. Or with
  const int32_t* begin;  // (rows + 1), or null: from[begin[r]] to from[begin[r + 1] - 1]
  const void* base;      // (base_rows, width), added to the first rows
  void* y;               // (rows, width)
  int64_t rows, each, width, base_rows;
  Element element;
};

// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const SumRows& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
