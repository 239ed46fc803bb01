// Statistics of the loads of all layers, a warp for each.

#include <cmath>

#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__device__ inline double warp_max(double value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

__global__ void __launch_bounds__(32) loads_kernel(const MoeLoads p) {
  const double* counts = p.counts[blockIdx.x];
  double sum = 0, largest = 0, entropy = 0;
  for (int expert = static_cast<int>(threadIdx.x); expert < p.experts; expert += 32) {
    sum += counts[expert];
    largest = fmax(largest, counts[expert]);
  }
  const double all = fmax(warp_sum(sum), 1.0);
  for (int expert = static_cast<int>(threadIdx.x); expert < p.experts; expert += 32) {
    const double share = counts[expert] / all;
    if (share > 0) entropy -= share * log(share);
  }
  entropy = warp_sum(entropy);
  largest = warp_max(largest);
  if (threadIdx.x > 0) return;
  double* loads = p.loads + 3 * static_cast<int64_t>(blockIdx.x);
  loads[0] = p.experts > 1 ? entropy / log(static_cast<double>(p.experts)) : 1.0;
  loads[1] = largest / all * p.experts;
  loads[2] = counts[p.experts] / all;
}

}  // namespace

cudaError_t launch(const MoeLoads& p, cudaStream_t stream) {
  loads_kernel<<<static_cast<unsigned>(p.layers), 32, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
