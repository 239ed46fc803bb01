// Damped updates with noise: a thread for each four values, one block of random words.

#include "ops/act/cuda/damped_update.h"
#include "ops/act/state_draws.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256, kMostRows = 32768;

template <typename T>
__global__ void __launch_bounds__(kThreads) damped_update(const DampedUpdate p) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (first >= p.each) return;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    float normals[4] = {};
    if (p.draws) {
      const CounterRng rng = draws_of_row(p.seed, Stream::path_noise, p.draws[row] + p.number);
      normal_block(rng, static_cast<uint32_t>(first / 4), normals);
    }
    const int64_t at = row * p.each + first;
    const T* const update = static_cast<const T*>(p.update) + at;
    const T* const state = static_cast<const T*>(p.state) + at;
    T* const out = static_cast<T*>(p.out) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= p.each) continue;
      float sum = __fmul_rn(p.share, to_float(update[i]));
      if (p.damping > 0) sum = __fadd_rn(sum, __fmul_rn(p.damping, to_float(state[i])));
      if (p.draws) sum = __fadd_rn(sum, __fmul_rn(p.std, normals[i]));
      out[i] = from_float<T>(sum);
    }
  }
}

}  // namespace

cudaError_t launch(const DampedUpdate& p, cudaStream_t stream) {
  if (p.rows == 0 || p.each == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.each + 4 * kThreads - 1) / (4 * kThreads)),
                  static_cast<unsigned>(p.rows < kMostRows ? p.rows : kMostRows));
  return by_element(p.element, [&](auto type) {
    damped_update<TypeIn<decltype(type)>><<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
