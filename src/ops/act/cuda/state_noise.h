#pragma once
// Parameters of the kernel of add_state_noise_. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct StateNoise {
  void* z;                         // (rows, each)
  const int64_t *keys, *segments;  // (rows)
  int64_t rows, each;
  float std;
  uint64_t seed;
  Element element;
};

cudaError_t launch(const StateNoise& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
