#pragma once
// Decoding attention by tensor cores, for 16-bit elements.

#include <cuda_runtime_api.h>

#include "ops/decode/cuda/decode_attention.h"

namespace hrm::ops::cuda {

// Up to eight heads of queries to one of keys; compute capability 8.0.
bool fits_heads(const DecodeAttention& params);
cudaError_t launch_heads(const DecodeAttention& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
