// Kernels for bfloat16 logits that give a row four blocks, or eight.

#include "ops/decode/cuda/next_tokens.cuh"

namespace hrm::ops::cuda {

template cudaError_t start_next_tokens<__nv_bfloat16, 4>(const NextTokens&, cudaStream_t);
template cudaError_t start_next_tokens<__nv_bfloat16, 8>(const NextTokens&, cudaStream_t);
template cudaError_t next_tokens_attributes<__nv_bfloat16>(cudaFuncAttributes& code);

}  // namespace hrm::ops::cuda
