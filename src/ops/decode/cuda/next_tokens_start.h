#pragma once
// The border between the file that chooses among the kernels of next_tokens.cuh and the files that compile them.

#include "ops/decode/cuda/next_tokens.h"

namespace hrm::ops::cuda {

constexpr int kNextTokensThreads = 1024;  // of a block

// Starts the kernel for logits of type T that gives each row a cluster of K blocks: K is 1, 2, 4 or 8. Only code for
// compute capability 9.0 and above knows clusters; for older GPUs the kernels of K > 1 are empty.
template <typename T, int K>
cudaError_t start_next_tokens(const NextTokens& params, cudaStream_t stream);

// Attributes of the code that this device would run for clusters.
template <typename T>
cudaError_t next_tokens_attributes(cudaFuncAttributes& code);

}  // namespace hrm::ops::cuda
