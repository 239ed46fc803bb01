#pragma once
// How kernels write E4m3Pairs. No torch headers.

#include <cuda_fp16.h>

#include "ops/linear/cuda/e4m3_pairs.h"
#include "ops/quantized/cuda/fp8.cuh"

namespace hrm::ops::cuda {

// Stores `kCount` neighbouring columns of a row, 2 or 4. The threads of a run, 64 / kCount neighbours of a warp, call
// it together; `mask` names them. rows: of the matrix, rounded up to 8.
template <int kCount>
__device__ inline void store_pairs(const E4m3Pairs& to, int64_t rows, int64_t columns, int64_t row, int64_t column,
                                   const float (&value)[kCount], uint32_t mask) {
  constexpr int kThreads = static_cast<int>(kPairsRun) / kCount;
  uint32_t largest = 0;  // sizes as integers, for which not-a-number is above infinity
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = max(largest, __float_as_uint(value[i]) & 0x7fffffffu);
#pragma unroll
  for (int offset = kThreads / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(mask, largest, offset));
  }
  // The largest number becomes 128 to 256. Where it is too small for that, scale and inverse stay normal numbers.
  const uint32_t exponent = max(largest >> 23, 8u);
  const float scale = __uint_as_float(exponent == 255 ? 0x7fffffffu : (exponent - 7) << 23);
  const float inverse = __uint_as_float(exponent == 255 ? 0u : (261 - exponent) << 23);
  uint32_t high = 0, low = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float first = value[i] * inverse, second = value[i + 1] * inverse;
    const uint32_t both = e4m3_pair(first, second);
    const __half2_raw back = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(both), __NV_E4M3);
    const float2 done = __half22float2(__half2(back));
    high |= both << 8 * i;
    low |= e4m3_pair(16 * (first - done.x), 16 * (second - done.y)) << 8 * i;
  }
  uint8_t* const at = to.values + (row / 8 * 16 + row % 8) * columns + column;
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint32_t*>(at) = high;
    *reinterpret_cast<uint32_t*>(at + 8 * columns) = low;
  } else {
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(high);
    *reinterpret_cast<uint16_t*>(at + 8 * columns) = static_cast<uint16_t>(low);
  }
  if (column % kPairsRun == 0) to.scales[column / kPairsRun * rows + row] = scale;
}

}  // namespace hrm::ops::cuda
