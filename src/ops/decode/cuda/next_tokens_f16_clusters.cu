// Kernels for float16 logits that give a row four blocks, or eight.

#include "ops/decode/cuda/next_tokens.cuh"

namespace hrm::ops::cuda {

template cudaError_t start_next_tokens<__half, 4>(const NextTokens&, cudaStream_t);
template cudaError_t start_next_tokens<__half, 8>(const NextTokens&, cudaStream_t);
template cudaError_t next_tokens_attributes<__half>(cudaFuncAttributes& code);

}  // namespace hrm::ops::cuda
