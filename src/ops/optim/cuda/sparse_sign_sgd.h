#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Contiguous rows of `dim` elements.
struct SparseSignSgdParams {
  float* weights;        // (entries, dim)
  const int32_t* ids32;  // (rows) one of the two, the other is null
  const int64_t* ids64;
  const float* row_grads;  // (rows, dim)
  const float* lr;
  const float* skip;
  int64_t entries;
  int64_t rows;
  int64_t dim;
  float weight_decay;
};

cudaError_t launch(const SparseSignSgdParams& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
