// Kernels for float32 logits that give a row four blocks, or eight.

#include "ops/decode/cuda/next_tokens.cuh"

namespace hrm::ops::cuda {

template cudaError_t start_next_tokens<float, 4>(const NextTokens&, cudaStream_t);
template cudaError_t start_next_tokens<float, 8>(const NextTokens&, cudaStream_t);
template cudaError_t next_tokens_attributes<float>(cudaFuncAttributes& code);

}  // namespace hrm::ops::cuda
