#pragma once
// Host code that chooses the portable attention kernel for a shape, forward and backward.

#include <cstdint>
#include <type_traits>

#include "ops/attention/cuda/attention.h"
#include "ops/cuda/by_element.cuh"

namespace hrm::ops::cuda {

template <int kValue>
using Number = std::integral_constant<int, kValue>;

// Calls start(TypeOf<T>, Number<head_dim>, Number<tiles of 16 positions>). Returns cudaErrorInvalidValue if there is no
// kernel.
template <class Params, class Start>
cudaError_t start_by_shape(const Params& p, const Start& start) {
  const bool fits = p.length >= 1 && p.length <= kAttentionMaxLength && (p.head_dim == 64 || p.head_dim == 32) &&
                    p.batch * p.heads <= INT32_MAX;
  if (!fits) return cudaErrorInvalidValue;
  return by_half_element(p.element, [&](auto type) {
    const auto by_length = [&](auto head_dim) {
      const int tiles = (p.length + 15) / 16;
      if (tiles <= 2) return start(type, head_dim, Number<2>{});
      if (tiles <= 4) return start(type, head_dim, Number<4>{});
      if (tiles <= 6) return start(type, head_dim, Number<6>{});
      if (tiles == 7) return start(type, head_dim, Number<7>{});
      return start(type, head_dim, Number<8>{});
    };
    return p.head_dim == 64 ? by_length(Number<64>{}) : by_length(Number<32>{});
  });
}

// One block per head and sample, with `bytes` of shared memory.
template <class Params>
cudaError_t start_heads(void (*kernel)(Params), const Params& p, int threads, int bytes, cudaStream_t stream) {
  if (bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(p.batch * p.heads), threads, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
