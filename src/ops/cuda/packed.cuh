#pragma once
// 16-bit numbers that stay pairs in registers.

#include <cstdint>

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {

// Between two passes over the same numbers: without it the compiler keeps the float32 values of the first pass, twice
// the registers, to save the second one a shift.
template <typename T, int N>
__device__ inline void keep_packed(Pack<T, N>& pack) {
  static_assert(sizeof(Pack<T, N>) == 16);
  auto* words = reinterpret_cast<uint32_t*>(&pack);
  asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
}

}  // namespace hrm::ops::cuda
