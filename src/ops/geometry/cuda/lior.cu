// A warp for each row.

#include "ops/cuda/common.cuh"
#include "ops/geometry/cuda/lior.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / 32;

__global__ void __launch_bounds__(kThreads) lior_step(LiorStep p) {
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
  if (row >= p.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* v = p.v + row * p.axes;
  const float* metric = p.metric + row * p.metric_stride;
  float sum = 0;
  if (p.diagonal) {
    for (int64_t i = lane; i < p.axes; i += 32) sum += metric[i] * v[i] * v[i];
  } else {
    for (int64_t i = 0; i < p.axes; ++i) {
      float inner = 0;
      for (int64_t j = lane; j < p.axes; j += 32) inner += metric[i * p.axes + j] * v[j];
      sum += v[i] * inner;
    }
  }
  const float speed = sqrtf(fmaxf(warp_sum(sum), 0.0F) + p.eps);
  if (lane != 0) return;
  p.speed[row] = speed;
  p.action[row] = p.resilience[row * p.resilience_stride] * speed * p.dtau;
}

}  // namespace

cudaError_t launch(const LiorStep& params, cudaStream_t stream) {
  const int64_t blocks = (params.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  lior_step<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
