#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// sum = a + b, contiguous.
struct InjectForward {
  const void* a;
  const void* b;
  void* sum;
  int64_t size;
  Element element;
};

// Starts the kernel on the stream and returns the error of the launch. 16 bytes at a time where the pointers are
// aligned to them, else single elements.
cudaError_t launch(const InjectForward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
