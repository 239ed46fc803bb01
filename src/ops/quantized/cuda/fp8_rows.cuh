#pragma once
// What kernels that write rows of e4m3 with a scale for each share (hrm/ops/fp8_rows.h). No torch headers.

#include <cfloat>

#include "ops/cuda/common.cuh"
#include "ops/quantized/cuda/fp8.cuh"

namespace hrm::ops::cuda {

// The larger of two sizes as the bits of floats. As integers, what is not a number is above infinity.
__device__ inline uint32_t larger_bits(uint32_t largest, float value) {
  return max(largest, __float_as_uint(value) & 0x7fffffffu);
}

// The largest size of a row, in every thread of its block of whole warps. Called once by a kernel.
__device__ inline float largest_of_block(uint32_t size) {
  __shared__ uint32_t partial[32];
  size = warp_largest(size);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = size;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int warp = 0; warp < warps; ++warp) size = max(size, partial[warp]);
  return __uint_as_float(size);
}

// The scale of a row with this largest size.
__device__ inline float scale_for(float largest) {
  const float quotient = __fdiv_rn(largest, 448.0f);
  return quotient < FLT_MIN ? FLT_MIN : quotient;
}

// N numbers times the factors of their columns, if there are any. By 16 bytes.
template <int N>
__device__ inline void multiply_columns(float (&value)[N], const float* factors, int64_t column) {
  if (factors == nullptr) return;
  float factor[N];
  load_floats<N>(factors + column, factor);
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = __fmul_rn(value[i], factor[i]);
}

// N numbers times the inverse of the scale, in one store of N bytes.
template <int N>
__device__ inline void store_e4m3(uint8_t* to, const float (&value)[N], float inverse) {
  static_assert(N == 4 || N == 8);
  uint32_t out[N / 4];
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    out[j] = e4m3_four(__fmul_rn(value[4 * j], inverse), __fmul_rn(value[4 * j + 1], inverse),
                       __fmul_rn(value[4 * j + 2], inverse), __fmul_rn(value[4 * j + 3], inverse));
  }
  if constexpr (N == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(out[0], out[1]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = out[0];
  }
}

}  // namespace hrm::ops::cuda
