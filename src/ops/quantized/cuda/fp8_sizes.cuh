#pragma once
// Quantisation of a thread's elements, with the largest of their magnitudes. No torch headers.

#include <cstdint>
#include <type_traits>

#include "ops/cuda/common.cuh"
#include "ops/quantized/cuda/fp8.cuh"

namespace hrm::ops::cuda {

// Makes 8-bit floats of a thread's elements, keeps the largest of their sizes, and counts those that were clamped.
template <typename T>
struct Fp8Sizes {
  uint32_t largest = 0;  // of 16-bit elements, in either half
  uint32_t clamped = 0;

  // To e4m3 or e5m2.
  template <bool kE5m2 = false, int N>
  __device__ Pack<uint8_t, N> quantize(const Pack<T, N>& x, float scale) {
    Pack<uint8_t, N> out;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const T other = i + 1 < N ? x.value[i + 1 < N ? i + 1 : i] : from_float<T>(0);
      add(x.value[i], other);
      const float low = to_float(x.value[i]) * scale, high = to_float(other) * scale;
      const uint32_t pair = kE5m2 ? e5m2_pair(low, high) : e4m3_pair(low, high);
      out.value[i] = static_cast<uint8_t>(pair);
      if (i + 1 < N) out.value[i + 1 < N ? i + 1 : i] = static_cast<uint8_t>(pair >> 8);
    }
    // The largest so far tells, as a rule, that there is nothing to count. It may be not-a-number.
    constexpr float kLimit = kE5m2 ? kClampedE5m2 : kClampedE4m3;
    if (__builtin_expect(!(__uint_as_float(bits()) * scale <= kLimit), 0)) {
#pragma unroll
      for (int i = 0; i < N; ++i) clamped += fabsf(to_float(x.value[i]) * scale) > kLimit ? 1 : 0;
    }
    return out;
  }

  __device__ void add(float a, float b) {
    largest = max(largest, max(__float_as_uint(a) & 0x7fffffffu, __float_as_uint(b) & 0x7fffffffu));
  }
  __device__ void add(__nv_bfloat16 a, __nv_bfloat16 b) {
    largest = larger_sizes(largest, __bfloat16_as_ushort(a) | uint32_t{__bfloat16_as_ushort(b)} << 16);
  }
  __device__ void add(__half a, __half b) {
    largest = larger_sizes(largest, __half_as_ushort(a) | uint32_t{__half_as_ushort(b)} << 16);
  }

  // As the bits of a float.
  __device__ uint32_t bits() const {
    if constexpr (std::is_same_v<T, float>) return largest;
    if constexpr (std::is_same_v<T, __half>) return largest_f16(largest);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return largest_bf16(largest);
  }
};

}  // namespace hrm::ops::cuda
