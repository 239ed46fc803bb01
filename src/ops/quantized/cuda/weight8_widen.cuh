#pragma once
// Four 8-bit numbers of a register to two pairs of 16-bit ones, exactly. A few bitwise operations and one subtraction
// or product for each pair, on every GPU: conversion instructions for e4m3 begin with compute capability 8.9.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/quantized/cuda/weight8.h"

namespace hrm::ops::cuda {

template <typename T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename T>
__device__ inline PairOf<T> as_pair(uint32_t bits) {
  PairOf<T> pair;
  memcpy(&pair, &bits, sizeof(pair));
  return pair;
}
template <typename Pair>
__device__ inline uint32_t as_bits(const Pair& pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// bytes: an e4m3 number in the upper byte of each half. Its exponent and mantissa are moved to the low end of those of
// T, which divides the number by a power of two, also if it is subnormal. The product takes that back.
template <typename T>
__device__ inline uint32_t widen_e4m3(uint32_t bytes) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  constexpr int kShift = kHalf ? 1 : 4;                            // 3 bits of mantissa become 10 or 7
  constexpr uint32_t kFactor = kHalf ? 0x5c005c00u : 0x7b807b80u;  // 2^8 = 2^(15 - 7), 2^120 = 2^(127 - 7)
  const uint32_t moved = ((bytes & 0x7f007f00u) >> kShift) | (bytes & 0x80008000u);
  return as_bits(__hmul2(as_pair<T>(moved), as_pair<T>(kFactor)));
}

// bytes: an integer in the lower byte of each half. In the mantissa of a suitable power of two its bits are an integer
// that is added to that power.
template <typename T>
__device__ inline uint32_t widen_int8(uint32_t bytes) {
  if constexpr (std::is_same_v<T, __half>) {
    // 1,024 + 128 + integer, less 1,152.
    return as_bits(__hsub2(as_pair<T>((bytes ^ 0x00800080u) | 0x64006400u), as_pair<T>(0x64806480u)));
  } else {
    // The lower seven bits added to 128, less 128, or 256 for negative numbers, whose sign bit is the exponent's last.
    return as_bits(
        __hsub2(as_pair<T>((bytes & 0x007f007fu) | 0x43004300u), as_pair<T>((bytes & 0x00800080u) | 0x43004300u)));
  }
}

// Numbers 0 and 1 of the four, and 2 and 3.
template <typename T, Weight8Format kFormat>
__device__ inline uint2 widen(uint32_t four) {
  if constexpr (kFormat == Weight8Format::e4m3) {
    return {widen_e4m3<T>(__byte_perm(four, 0, 0x1404)), widen_e4m3<T>(__byte_perm(four, 0, 0x3424))};
  } else {
    return {widen_int8<T>(__byte_perm(four, 0, 0x4140)), widen_int8<T>(__byte_perm(four, 0, 0x4342))};
  }
}

}  // namespace hrm::ops::cuda
