// Random start states: a thread for each four values of a row that starts.

#include "ops/act/cuda/start_state.h"
#include "ops/act/state_draws.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256, kMostRows = 32768;

template <typename T>
__global__ void __launch_bounds__(kThreads) start_state(const StartState p) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (first >= p.each) return;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    if (!p.fresh[row]) continue;
    float uniforms[4];
    const CounterRng rng = draws_of_row(p.seed, Stream::start_state, p.draws[row] + p.number);
    truncated_uniforms(rng, static_cast<uint32_t>(first / 4), uniforms);
    T* const z = static_cast<T*>(p.z) + row * p.each + first;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= p.each) continue;
      z[i] = from_float<T>(fminf(fmaxf(erfinvf(uniforms[i]) * p.factor, -p.bound), p.bound));
    }
  }
}

}  // namespace

cudaError_t launch(const StartState& p, cudaStream_t stream) {
  if (p.rows == 0 || p.each == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.each + 4 * kThreads - 1) / (4 * kThreads)),
                  static_cast<unsigned>(p.rows < kMostRows ? p.rows : kMostRows));
  return by_element(p.element, [&](auto type) {
    start_state<TypeIn<decltype(type)>><<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
