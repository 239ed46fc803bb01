// Weights in 8 bits with a scale for each row: into the format, by a block for each row, and back, bound by what is
// written.

#include "ops/quantized/cuda/weight8.h"

#include <cuda_fp8.h>

#include <cfloat>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kEach = 16;  // values of a thread: 16 bytes

// A number that is none is the larger one, so that it is not lost.
__device__ inline float larger(float a, float b) {
  return a > b || a != a ? a : b;
}

template <Weight8Format kFormat>
__device__ inline uint8_t value_of(float x) {
  if constexpr (kFormat == Weight8Format::e4m3) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  } else {
    // Of a number that is none: 0, as the reference writes.
    const float limited = fminf(fmaxf(rintf(x), -127.0f), 127.0f);
    return static_cast<uint8_t>(static_cast<int8_t>(x != x ? 0 : static_cast<int>(limited)));
  }
}

template <Weight8Format kFormat>
__device__ inline float number_of(uint8_t value) {
  if constexpr (kFormat == Weight8Format::e4m3) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value, __NV_E4M3)));
  } else {
    return static_cast<float>(static_cast<int8_t>(value));
  }
}

template <typename T, Weight8Format kFormat>
__global__ void __launch_bounds__(kThreads) quantize_weight8_kernel(const Weight8Quantize p) {
  __shared__ float partial[kWarps];
  const T* from = static_cast<const T*>(p.weight) + int64_t{blockIdx.x} * p.inner;
  uint8_t* to = p.values + int64_t{blockIdx.x} * p.inner;
  float largest = 0;
  for (int64_t i = threadIdx.x; i < p.inner; i += kThreads) largest = larger(largest, fabsf(to_float(from[i])));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = larger(largest, partial[warp]);
  const float quotient = __fdiv_rn(largest, kFormat == Weight8Format::e4m3 ? 448.0f : 127.0f);
  const float scale = quotient < FLT_MIN ? FLT_MIN : quotient;
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < p.inner; i += kThreads) {
    to[i] = value_of<kFormat>(__fdiv_rn(to_float(from[i]), scale));
  }
}

// inner a multiple of 16, pointers aligned to 16 bytes.
template <typename T, Weight8Format kFormat>
__global__ void __launch_bounds__(kThreads) dequantize_weight8_kernel(const Weight8Dequantize p) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (at >= p.rows * p.inner) return;
  const Pack<uint8_t, kEach> values = load_pack<uint8_t, kEach>(p.values + at);
  const float scale = p.scales[at / p.inner];
  constexpr int kPack = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < kEach; i += kPack) {
    Pack<T, kPack> out;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      out.value[j] = from_float<T>(__fmul_rn(number_of<kFormat>(values.value[i + j]), scale));
    }
    store_pack<T, kPack>(static_cast<T*>(p.out) + at + i, out);
  }
}

// Any inner and alignment, a number a thread.
template <typename T, Weight8Format kFormat>
__global__ void __launch_bounds__(kThreads) dequantize_weight8_each_kernel(const Weight8Dequantize p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.rows * p.inner) return;
  static_cast<T*>(p.out)[at] = from_float<T>(__fmul_rn(number_of<kFormat>(p.values[at]), p.scales[at / p.inner]));
}

unsigned weight8_blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <Weight8Format kFormat>
cudaError_t quantize(const Weight8Quantize& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    quantize_weight8_kernel<T, kFormat><<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

template <Weight8Format kFormat>
cudaError_t dequantize(const Weight8Dequantize& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const int64_t count = p.rows * p.inner;
    if (p.inner % kEach == 0 && aligned16(p.values) && aligned16(p.out)) {
      dequantize_weight8_kernel<T, kFormat>
          <<<weight8_blocks(count, int64_t{kThreads} * kEach), kThreads, 0, stream>>>(p);
    } else {
      dequantize_weight8_each_kernel<T, kFormat><<<weight8_blocks(count, kThreads), kThreads, 0, stream>>>(p);
    }
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch(const Weight8Quantize& p, cudaStream_t stream) {
  if (p.rows * p.inner == 0) return cudaSuccess;
  return p.format == Weight8Format::e4m3 ? quantize<Weight8Format::e4m3>(p, stream)
                                         : quantize<Weight8Format::int8>(p, stream);
}

cudaError_t launch(const Weight8Dequantize& p, cudaStream_t stream) {
  if (p.rows * p.inner == 0) return cudaSuccess;
  return p.format == Weight8Format::e4m3 ? dequantize<Weight8Format::e4m3>(p, stream)
                                         : dequantize<Weight8Format::int8>(p, stream);
}

}  // namespace hrm::ops::cuda
