#pragma once
// Parameters of the dropout kernel. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// out = (sum +) x times 0 or scale.
struct Dropout {
  const void* x;    // (count)
  const void* sum;  // (count), may be out; null: nothing is added
  void* out;        // (count)
  const int64_t* step;
  int64_t count;
  uint32_t threshold;  // words below it drop an element
  float scale;
  uint64_t seed;
  Element element;
};

cudaError_t launch(const Dropout& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
