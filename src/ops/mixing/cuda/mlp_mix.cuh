#pragma once
// What the kernels of mlp_mix share. Legend: d: channel (width), l: position (length), f: hidden unit (inner).

#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/core_matrices.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::mix {

using namespace sm90;  // NOLINT
using sm90::registers_fence;

constexpr int kUnitChannels = 64;
constexpr int kChunk = 32;                           // hidden units in a chunk
constexpr int kInnerMultiple = 256;                  // whole tiles of the weights' gradients
constexpr uint32_t kSharedLimit = 227 * 1024 - 256;  // bytes of shared memory of a block, less room for barriers

// Steps of 16 positions as the inner dimension, and positions as columns of z.
template <int kStepsOf16, int kColumnCount>
struct Positions {
  static constexpr int kSteps = kStepsOf16;
  static constexpr int kColumns = kColumnCount;
  static constexpr uint32_t kGateUpBytes = kSteps * 16 * 2 * kChunk * 2;
  static constexpr uint32_t kDownBytes = kChunk * kColumns * 2;
  static constexpr uint32_t kChunkBytes = kGateUpBytes + kDownBytes;
};

// The hidden unit, of the 32 of a chunk, behind column n of the wgmma tile. A thread of a quad holds columns
// 8 * j + 2 * q + e; numbered this way its eight hidden units are neighbours, 16 bytes.
__host__ __device__ constexpr int unit_of_column(int n) {
  return n % 8 / 2 * 8 + n / 8 * 2 + n % 2;
}

struct PackParams {
  const uint16_t* gate_up;
  const uint16_t* down;
  uint16_t* packed;
  int length, inner, steps, columns;
};

// Half of a bf16 number. Below the normal numbers the last bit is lost.
__device__ inline uint16_t halved(uint16_t bits) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(0.5f * __bfloat162float(__ushort_as_bfloat16(bits))));
}

// Row `row` of the core matrices of a chunk's gate_up weights as a K-major operand: 8 positions of one of 64 columns.
template <Input kInput>
__device__ inline Pack<uint16_t, 8> pack_gate_up_row(const PackParams& p, int chunk, int row) {
  const int n = row % (2 * kChunk), first = row / (2 * kChunk) * 8;
  const bool gate = n < kChunk;
  const int64_t source = (gate ? 0 : p.inner) + chunk * kChunk + unit_of_column(n % kChunk);
  Pack<uint16_t, 8> out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint16_t weight = first + i < p.length ? p.gate_up[source * p.length + first + i] : uint16_t{0};
    out.value[i] = kInput == Input::bf16 && gate ? halved(weight) : weight;
  }
  return out;
}

// The value of lane 0, which the compiler then knows to be the same in all lanes: descriptors made from it need no
// detour through vector registers.
__device__ inline int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

// The fragments are written before this point, not after the next wait.
template <int kSteps>
__device__ inline void registers_fence(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[s][i])::"memory");
  }
}

// ---- Arithmetic on pairs ----

template <Input kInput>
__device__ inline uint32_t pack_pair(float low, float high) {
  uint32_t out;
  if constexpr (kInput == Input::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}

template <Input kInput>
__device__ inline float2 unpack_pair(uint32_t pair) {
  if constexpr (kInput == Input::bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

__device__ inline float exp2_approximate(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

struct Logistic {
  float sigmoid[2];
  float silu[2];
};

// The logistic function of two gates, and x * sigmoid(x).
//
// bf16: by the hardware's tanh, sigmoid(x) = 1/2 + 1/2 tanh(x/2). Its error, 2^-11 of tanh, is below a bf16 rounding,
// and it is the cheapest way: the special-function units and the issue slots are nearly as busy as the tensor cores.
// The packed gate weights are halved, which is exact, so that the product is x/2 already.
//
// f16: by exp2, and one reciprocal for both numbers. Below -41 sigmoid stays at 2^-60, which times x is nothing.
template <Input kInput>
__device__ inline Logistic logistic(float g, float h) {
  if constexpr (kInput == Input::bf16) {
    float t, u;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(g));
    asm("tanh.approx.f32 %0, %1;" : "=f"(u) : "f"(h));
    return {{fmaf(t, 0.5f, 0.5f), fmaf(u, 0.5f, 0.5f)}, {fmaf(g, t, g), fmaf(h, u, h)}};
  } else {
    constexpr float kLog2E = 1.4426950408889634f;
    const float a = 1.0f + exp2_approximate(fminf(g * -kLog2E, 60.0f));
    const float b = 1.0f + exp2_approximate(fminf(h * -kLog2E, 60.0f));
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(a * b));
    return {{inverse * b, inverse * a}, {g * (inverse * b), h * (inverse * a)}};
  }
}

// ---- A warp's tile of 16 channels x positions in shared memory: 32 bytes a position ----

// Byte of channels 8 * half .. + 7 of position l; the halves change places every four positions against bank conflicts.
__device__ inline uint32_t tile_offset(int l, int half) {
  return static_cast<uint32_t>(l * 32 + (half ^ (l >> 2 & 1)) * 16);
}

}  // namespace hrm::ops::cuda::mix
