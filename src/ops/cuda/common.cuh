#pragma once
// Helpers of the kernels. No torch headers.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda {

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}

template <typename T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// N neighbouring elements, moved by one instruction: N = 1, or as many as make 16 bytes (then aligned to 16 bytes).
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T value[N];
};

template <typename T, int N>
__device__ inline Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <typename T, int N>
__device__ inline void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// N float32 numbers, by 16 bytes where N is a multiple of 4 (then aligned to 16 bytes).
template <int N>
__device__ inline void load_floats(const float* from, float (&value)[N]) {
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    const Pack<float, kWidth> pack = load_pack<float, kWidth>(from + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[i + j] = pack.value[j];
  }
}

// Sum over the warp, in every lane; always in the same order.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Sum over a block of kWarps whole warps, in every thread; always in the same order. Holds two barriers, so it may be
// called again at once.
template <int kWarps>
__device__ inline float block_sum(float value) {
  __shared__ float partial[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp];
  __syncthreads();
  return total;
}

inline bool aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace hrm::ops::cuda
