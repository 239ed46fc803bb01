#pragma once
// Products and transpositions of small matrices by a warp (PTX ISA: mma.m16n8k16, movmatrix). For 16-bit elements.
//
// With group = lane / 4 and part = lane % 4 a lane holds, two elements to a register,
//   of a (16 x 16): a0, a2 row `group`, a1, a3 row group + 8;  of b (16 x 8): column `group`;
//     a0, a1, b0 have the summands 2 part, 2 part + 1 and a2, a3, b1 those 8 further, though which of the 16 summands
//     stands where is free as long as both factors agree;
//   of the sum (16 x 8): sum[0], sum[1] row `group`, sum[2], sum[3] row group + 8, columns 2 part, 2 part + 1.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace hrm::ops::cuda {

// Of 16 bytes the i-th four; i known to the compiler, so that they stay in registers.
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// sum += a b, in float32.
template <typename T>
__device__ inline void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
#else
  (void)sum, (void)a0, (void)a1, (void)a2, (void)a3, (void)b0, (void)b1;
#endif
}

// sum = a b, in float32, of float16: no registers need to be cleared before.
__device__ inline void product(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
#else
  (void)sum, (void)a0, (void)a1, (void)a2, (void)a3, (void)b0, (void)b1;
#endif
}

// Of an 8 x 8 matrix a lane gives elements 2 part, 2 part + 1 of row `group` and gets those of column `group`.
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t result = pair;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
#endif
  return result;
}

}  // namespace hrm::ops::cuda
