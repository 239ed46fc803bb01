// Noise of the router's input: a thread for each four values, which share a block of random words.

#include "hrm/base/philox.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;

template <typename T>
__global__ void __launch_bounds__(kThreads) jitter_kernel(const MoeJitter p) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = block * kWords;
  if (first >= p.count) return;
  uint32_t words[kWords];
  CounterRng(p.seed, Stream::jitter, static_cast<uint64_t>(*p.step)).block(static_cast<uint32_t>(block), words);
  const T* x = static_cast<const T*>(p.x);
  T* out = static_cast<T*>(p.out);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i >= p.count) break;
    const float uniform = static_cast<float>(words[i] >> 8) * 0x1.0p-24f;
    // As the CPU rounds it: no fused multiply-add.
    const float noise = __fadd_rn(1.0f, __fmul_rn(p.amount, __fsub_rn(2 * uniform, 1.0f)));
    out[first + i] = from_float<T>(__fmul_rn(to_float(x[first + i]), noise));
  }
}

}  // namespace

cudaError_t launch(const MoeJitter& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  const int64_t blocks = (p.count + kWords * kThreads - 1) / (kWords * kThreads);
  return by_element(p.element, [&](auto type) {
    jitter_kernel<TypeIn<decltype(type)>><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
