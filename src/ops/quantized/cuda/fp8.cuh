#pragma once
// What kernels that write e4m3 share; slots as in fp8.h. No torch headers.

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Scaled magnitudes above these are clamped to the largest value of e4m3 or e5m2. (One that is beyond it by rounding
// alone, as the tensor's largest may be, loses nothing.) As in fp8_linear_ref.cpp.
constexpr float kClampedE4m3 = 448 * 1.00001f, kClampedE5m2 = 57344 * 1.00001f;

// Two numbers, already scaled, in e4m3: saturated, rounded to nearest even; `low` in the lower byte.
__device__ inline uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The same in e5m2.
__device__ inline uint32_t e5m2_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E5M2);
}

__device__ inline uint32_t e4m3_four(float a, float b, float c, float d) {
  return e4m3_pair(a, b) | e4m3_pair(c, d) << 16;
}

// The largest sizes seen in either half of registers that hold two 16-bit numbers each. Sizes are compared as integers,
// for which not-a-number is above infinity.
__device__ inline uint32_t larger_sizes(uint32_t largest, uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7fff7fffu);
}

// Of what larger_sizes() gathered, the larger half as the bits of a float.
__device__ inline uint32_t largest_bf16(uint32_t largest) {
  return max(largest << 16, largest & 0xffff0000u);
}
__device__ inline uint32_t largest_f16(uint32_t largest) {
  const uint32_t size = max(largest & 0xffffu, largest >> 16);
  return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(size))));
}

__device__ inline uint32_t warp_largest(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, value);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
#endif
}

// Raises a slot's amax to the largest of the threads' sizes, given as the bits of floats, by one atomic operation.
// Called once by all threads of a block of kWarps whole warps.
template <int kWarps>
__device__ inline void raise_amax_by_block(float* slot, uint32_t size) {
  __shared__ uint32_t partial[kWarps];
  size = warp_largest(size);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = size;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  size = warp_largest(threadIdx.x < kWarps ? partial[threadIdx.x] : 0);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(slot + 2), static_cast<int>(size));
}

// Counts in a wide slot (hrm/ops/fp8_linear.h): quantised rows, and values that were clamped.
__device__ inline void count_rows(float* slot, int64_t rows) {
  atomicAdd(reinterpret_cast<unsigned*>(slot + 5), static_cast<unsigned>(rows));
}
__device__ inline void count_clamped(float* slot, uint32_t clamped) {
  atomicAdd(reinterpret_cast<unsigned long long*>(slot + 6), static_cast<unsigned long long>(clamped));
}

__device__ inline uint32_t warp_sum_of(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, value);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
#endif
}

// raise_amax_by_block() of a wide slot, which also counts. `rows` of the whole tensor are counted by the first block.
template <int kWarps>
__device__ inline void record_by_block(float* slot, uint32_t size, uint32_t clamped, int64_t rows) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) count_rows(slot, rows);
  // Few threads have clamped any, if at all: no sum over the block, which all would wait for.
  if (__any_sync(0xffffffffu, clamped != 0)) {
    clamped = warp_sum_of(clamped);
    if (threadIdx.x % 32 == 0) count_clamped(slot, clamped);
  }
  raise_amax_by_block<kWarps>(slot, size);
}

}  // namespace hrm::ops::cuda
