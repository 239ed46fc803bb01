#pragma once
// Parameters of the kernel of start_state_. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct StartState {
  void* z;               // (rows, each)
  const bool* fresh;     // (rows)
  const int64_t* draws;  // (rows)
  int64_t rows, each;
  int64_t number;
  float factor, bound;  // of the inverse error function; largest magnitude of a value
  uint64_t seed;
  Element element;
};

cudaError_t launch(const StartState& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
