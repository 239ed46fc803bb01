// Kernels for bfloat16 logits that give a row one block, or two.

#include "ops/decode/cuda/next_tokens.cuh"

namespace hrm::ops::cuda {

template cudaError_t start_next_tokens<__nv_bfloat16, 1>(const NextTokens&, cudaStream_t);
template cudaError_t start_next_tokens<__nv_bfloat16, 2>(const NextTokens&, cudaStream_t);

}  // namespace hrm::ops::cuda
