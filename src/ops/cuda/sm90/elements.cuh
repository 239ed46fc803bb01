#pragma once
// Two neighbouring 16-bit elements, or four e4m3, in a register, and what the epilogues do with them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/quantized/cuda/fp8.cuh"

namespace hrm::ops::cuda::sm90 {

template <typename T>
constexpr Input kInputOf = Input::bf16;
template <>
constexpr Input kInputOf<__half> = Input::f16;

template <Input kInput>
__device__ inline uint32_t round_pair(float low, float high) {
  static_assert(kInput != Input::e4m3);
  if constexpr (kInput == Input::f16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <Input kInput>
__device__ inline float2 widen_pair(uint32_t pair) {
  static_assert(kInput != Input::e4m3);
  if constexpr (kInput == Input::f16) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

// Sums and products of 16-bit pairs, rounded once.
template <Input kInput>
__device__ inline uint32_t add_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  if constexpr (kInput == Input::f16) {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  } else {
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  }
  return out;
}

template <Input kInput>
__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  if constexpr (kInput == Input::f16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  }
  return out;
}

// Two 16-bit pairs, times `scale`, as four e4m3.
template <Input kInput>
__device__ inline uint32_t quantize_pairs(uint32_t first, uint32_t second, float scale) {
  const float2 a = widen_pair<kInput>(first), b = widen_pair<kInput>(second);
  return e4m3_four(a.x * scale, a.y * scale, b.x * scale, b.y * scale);
}

// A warp's largest size, from what larger_sizes() gathered of pairs, into the slot of a quantised tensor. In whichever
// order warps come, the slot ends the same.
template <Input kInput>
__device__ inline void raise_amax_of_pairs(float* slot, uint32_t largest) {
  const uint32_t size = kInput == Input::f16 ? largest_f16(largest) : largest_bf16(largest);
  const auto bits = static_cast<int>(warp_largest(size));
  if (threadIdx.x % 32 == 0 && bits > 0) atomicMax(reinterpret_cast<int*>(slot + 2), bits);
}

// How many of these 16-bit numbers quantize_pairs() clamps: as a rule none, as `largest` tells, which is what
// larger_sizes() gathered of them and others. None if they do not exist.
template <Input kInput, int N>
__device__ inline uint32_t clamped_pairs(const uint32_t (&pairs)[N], uint32_t largest, float scale, bool exist) {
  const uint32_t size = kInput == Input::f16 ? largest_f16(largest) : largest_bf16(largest);
  if (__builtin_expect(__uint_as_float(size) * scale <= kClampedE4m3 || !exist, 1)) return 0;
  uint32_t count = 0;
#pragma unroll
  for (const uint32_t pair : pairs) {
    const float2 wide = widen_pair<kInput>(pair);
    count += (fabsf(wide.x * scale) > kClampedE4m3 ? 1 : 0) + (fabsf(wide.y * scale) > kClampedE4m3 ? 1 : 0);
  }
  return count;
}

// 16 bytes by one instruction; the compiler makes four of an ordinary store now and then.
__device__ inline void store_16(void* to, const uint4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

// 1 / (1 + exp(-x)) and x times that, by the same two approximations as in ops/linear/cuda/swiglu.cu and with the same
// bits. Tiny numbers become zero, which only shows where the sigmoid itself is below 2^-126; saying so saves half of
// the instructions.
__device__ inline float sigmoid(float x) {
  float power, out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504088896340736f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(1.0f + power));
  return out;
}

__device__ inline float silu(float x) {
  return x * sigmoid(x);
}

// The weights of a product are loaded with their rows permuted inside of each 32, so that a thread's accumulators hold
// whole runs of 8 neighbouring outputs, which it can store as 16 bytes: output 32 * J + 8 * q + 2 * jj + e comes from
// accumulator column 32 * J + 8 * jj + 2 * q + e. As a tensor map over weight (rows, K) that is five dimensions:
//   k, e (2, stride 1 row), q (4, stride 8 rows), jj (4, stride 2 rows), J (rows / 32, stride 32 rows).
//
// Accumulators of the 8 outputs 32 * J + 8 * q + (0..7) in row 16 * warp + g + 8 * i, as four pairs.
template <Input kInput, int kCount>
__device__ inline uint4 round_eight(const float (&d)[kCount], int run, int i) {
  uint4 out;
  out.x = round_pair<kInput>(d[16 * run + 2 * i], d[16 * run + 2 * i + 1]);
  out.y = round_pair<kInput>(d[16 * run + 4 + 2 * i], d[16 * run + 4 + 2 * i + 1]);
  out.z = round_pair<kInput>(d[16 * run + 8 + 2 * i], d[16 * run + 8 + 2 * i + 1]);
  out.w = round_pair<kInput>(d[16 * run + 12 + 2 * i], d[16 * run + 12 + 2 * i + 1]);
  return out;
}

}  // namespace hrm::ops::cuda::sm90
