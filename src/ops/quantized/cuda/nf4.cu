// NF4. Dequantising is bound by what it writes. A thread turns four bytes of codes into eight numbers, 16 bytes of a
// 16-bit type, which one instruction stores; neighbouring threads take neighbouring bytes, so that a warp reads one
// line and writes four whole ones, and a thread's loads are all on their way before it uses the first. (16 bytes of
// codes at a time would leave a thread 64 bytes to write, and each store of a warp scattered over four times as many
// lines.)

#include "ops/quantized/cuda/nf4.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/quantized/nf4_levels.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kEach = 8;   // numbers of four bytes of codes
constexpr int kAhead = 4;  // times four bytes of a thread

__constant__ Nf4Levels<kNf4Levels> c_levels = nf4_levels();
__constant__ Nf4Levels<kNf4AbsmaxLevels> c_absmax_levels = nf4_absmax_levels();

// A number that is none is the larger one, so that it is not lost.
__device__ inline float larger(float a, float b) {
  return a > b || a != a ? a : b;
}

// A warp for each block of 64, two neighbours a lane: one byte of codes.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const Nf4Quantize p) {
  static_assert(kNf4Elements == 2 * kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t block = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const int64_t first = block * kNf4Elements + 2 * lane;
  if (block * kNf4Elements >= p.count) return;  // the whole warp
  const T* weight = static_cast<const T*>(p.weight);
  const float a = first < p.count ? to_float(weight[first]) : 0.0f;
  const float b = first + 1 < p.count ? to_float(weight[first + 1]) : 0.0f;
  float largest = larger(fabsf(a), fabsf(b));
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  const float divisor = largest == 0.0f ? 1.0f : largest;
  const float x = __fdiv_rn(a, divisor), y = __fdiv_rn(b, divisor);
  int upper = 0, lower = 0;
#pragma unroll
  for (int i = 0; i + 1 < kNf4Levels; ++i) {
    upper += x > c_levels.between[i] ? 1 : 0;
    lower += y > c_levels.between[i] ? 1 : 0;
  }
  if (first < p.count) p.codes[first / 2] = static_cast<uint8_t>(16 * upper + lower);
  if (lane == 0) p.absmax[block] = largest;
}

// What a block's magnitude is made of, as it lies in memory.
struct Magnitude {
  float scale;   // or the magnitude itself
  uint8_t code;  // with a scale
};

__device__ inline Magnitude load_magnitude(const Nf4Dequantize& p, int64_t block) {
  if (p.absmax != nullptr) return {p.absmax[block], 0};
  return {p.scales[block / kNf4Magnitudes], p.absmax_codes[block]};
}

// Rounded twice, as two operations on tensors do it.
__device__ inline float value_of(const Nf4Dequantize& p, const Magnitude& m) {
  if (p.absmax != nullptr) return m.scale;
  return __fadd_rn(__fmul_rn(c_absmax_levels.level[m.code], m.scale), *p.offset);
}

// count a multiple of eight, codes aligned to four bytes and out to 16. 16 levels in 16 banks of shared memory: lanes
// that read different ones do not wait for each other.
template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const Nf4Dequantize p) {
  __shared__ float level[kNf4Levels];
  if (threadIdx.x < kNf4Levels) level[threadIdx.x] = c_levels.level[threadIdx.x];
  __syncthreads();
  constexpr int64_t kStep = int64_t{kThreads} * kEach;
  const int64_t first = int64_t{blockIdx.x} * kAhead * kStep + int64_t{threadIdx.x} * kEach;
  uint32_t codes[kAhead];
  Magnitude magnitudes[kAhead];
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    const int64_t at =
        min(first + a * kStep, p.count - kEach);  // behind the end: the last ones again, without a branch
    codes[a] = *reinterpret_cast<const uint32_t*>(p.codes + at / 2);
    magnitudes[a] = load_magnitude(p, at / kNf4Elements);
  }
  constexpr int kPack = 16 / sizeof(T);
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    const int64_t at = first + a * kStep;
    if (at >= p.count) return;
    const float absmax = value_of(p, magnitudes[a]);
    T* out = static_cast<T*>(p.out) + at;
#pragma unroll
    for (int i = 0; i < kEach; i += kPack) {
      Pack<T, kPack> values;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        // Byte k / 2 of the word, its upper half where k is even.
        const int k = i + j, shift = 8 * (k / 2) + (k % 2 == 0 ? 4 : 0);
        values.value[j] = from_float<T>(__fmul_rn(level[(codes[a] >> shift) & 15u], absmax));
      }
      store_pack<T, kPack>(out + i, values);
    }
  }
}

// Any count and alignment, a number a thread.
template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_each_kernel(const Nf4Dequantize p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.count) return;
  const uint32_t code = at % 2 == 0 ? p.codes[at / 2] >> 4 : p.codes[at / 2] & 15u;
  static_cast<T*>(p.out)[at] =
      from_float<T>(__fmul_rn(c_levels.level[code], value_of(p, load_magnitude(p, at / kNf4Elements))));
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

cudaError_t launch(const Nf4Quantize& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    quantize_kernel<T><<<blocks_of(p.count, int64_t{kThreads} / kWarp * kNf4Elements), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t launch(const Nf4Dequantize& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const bool wide = p.count % kEach == 0 && aligned16(p.codes) && aligned16(p.out);
    if (wide) {
      dequantize_kernel<T><<<blocks_of(p.count, int64_t{kAhead} * kThreads * kEach), kThreads, 0, stream>>>(p);
    } else {
      dequantize_each_kernel<T><<<blocks_of(p.count, kThreads), kThreads, 0, stream>>>(p);
    }
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
