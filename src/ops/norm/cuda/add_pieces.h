#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// out[i] = residual[i] + pieces[i] + pieces[distance + i] + ..., in float32 in this order, rounded once.
struct AddPieces {
  const void* residual;  // or null: 0
  const void* pieces;
  void* out;
  int64_t count;     // of out, at least 1
  int64_t distance;  // elements from one piece to the next
  int parts;         // at least 1
  Element element;
};

// Starts the kernel on the stream and returns the error of the launch. One pass; 16 bytes at a time where count,
// distance and pointers are multiples of 16 bytes, otherwise single elements.
cudaError_t launch(const AddPieces& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
