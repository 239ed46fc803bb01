#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Contiguous rows: gate_up has 2 * width elements in each (gate, then up), act has width. rows, width at least 1.
struct SwigluForward {
  const void* gate_up;
  void* act;
  int64_t rows;
  int64_t width;
  Element element;
};

struct SwigluBackward {
  const void* grad_act;
  const void* gate_up;
  void* grad_gate_up;
  int64_t rows;
  int64_t width;
  Element element;
};

// Start the kernel on the stream and return the error of the launch. One pass; 16 bytes at a time where width is a
// multiple of 16 bytes and the pointers are aligned to them, otherwise single elements.
cudaError_t launch(const SwigluForward& params, cudaStream_t stream);
cudaError_t launch(const SwigluBackward& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
