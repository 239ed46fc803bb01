// Noise on recurrent states: a thread for each four values, one block of random words.

#include "ops/act/cuda/state_noise.h"
#include "ops/act/state_noise_draw.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256, kMostRows = 32768;

template <typename T>
__global__ void __launch_bounds__(kThreads) add_state_noise(const StateNoise p) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (first >= p.each) return;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t key = p.keys[row];
    if (key < 0) continue;
    float normals[4];
    normal_block(noise_of_row(p.seed, key, p.segments[row]), static_cast<uint32_t>(first / 4), normals);
    T* const z = static_cast<T*>(p.z) + row * p.each + first;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < p.each) z[i] = from_float<T>(__fadd_rn(to_float(z[i]), __fmul_rn(p.std, normals[i])));
    }
  }
}

}  // namespace

cudaError_t launch(const StateNoise& p, cudaStream_t stream) {
  if (p.rows == 0 || p.each == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.each + 4 * kThreads - 1) / (4 * kThreads)),
                  static_cast<unsigned>(p.rows < kMostRows ? p.rows : kMostRows));
  return by_element(p.element, [&](auto type) {
    add_state_noise<TypeIn<decltype(type)>><<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
