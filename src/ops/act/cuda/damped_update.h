#pragma once
// Parameters of the kernel of damped_update. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct DampedUpdate {
  const void* update;    // (rows, each)
  const void* state;     // (rows, each)
  void* out;             // (rows, each)
  const int64_t* draws;  // (rows); null without noise
  int64_t rows, each;
  int64_t number;
  float share, damping, std;  // share = 1 - damping
  uint64_t seed;
  Element element;
};

cudaError_t launch(const DampedUpdate& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
