// The loss of the experts' loads: sums over tokens by blocks, then one block for the rest.

#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Sums of the scores of kMoeLossTokens tokens. Of few experts several threads share a column.
__global__ void __launch_bounds__(kThreads) columns_kernel(const MoeLoadLoss p) {
  wait_for_earlier();
  __shared__ float shared[kThreads];
  const int thread = static_cast<int>(threadIdx.x), groups = p.experts < kThreads ? kThreads / p.experts : 1;
  const int64_t first = int64_t{blockIdx.x} * kMoeLossTokens, left = p.tokens - first;
  const int rows = left < kMoeLossTokens ? static_cast<int>(left) : kMoeLossTokens;
  const float* scores = p.scores + first * p.experts;
  for (int base = 0; base < p.experts; base += kThreads) {
    const int group = groups > 1 ? thread / p.experts : 0, expert = base + (groups > 1 ? thread % p.experts : thread);
    const bool works = group < groups && expert < p.experts;
    float sum = 0;
    if (works) {
      for (int row = group; row < rows; row += groups) sum += scores[row * p.experts + expert];
    }
    shared[thread] = sum;
    __syncthreads();
    if (works && group == 0) {
      for (int other = 1; other < groups; ++other) sum += shared[other * p.experts + expert];
      p.partial[int64_t{blockIdx.x} * p.experts + expert] = sum;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) loss_kernel(const MoeLoadLoss p, const int blocks) {
  wait_for_earlier();
  const auto tokens = static_cast<double>(p.tokens);
  const auto scale = static_cast<float>(p.experts / (tokens * tokens));
  float loss = 0, dropped = 0;
  for (int expert = static_cast<int>(threadIdx.x); expert < p.experts; expert += kThreads) {
    float sum = 0;
#pragma unroll 8
    for (int block = 0; block < blocks; ++block) sum += p.partial[int64_t{block} * p.experts + expert];
    const int wanted = p.wanted[expert];
    const float slope = static_cast<float>(wanted) * scale;
    p.slope[expert] = slope;
    p.totals[expert] += wanted;
    loss += sum * slope;
    dropped += static_cast<float>(wanted - p.kept[expert]);  // whole numbers below 2^24 are exact
  }
  loss = block_sum<kThreads / 32>(loss);
  dropped = block_sum<kThreads / 32>(dropped);
  if (threadIdx.x == 0) {
    *p.loss = loss;
    p.totals[p.experts] += dropped;
  }
}

}  // namespace

cudaError_t launch(const MoeLoadLoss& p, cudaStream_t stream) {
  const auto blocks = static_cast<int>((p.tokens + kMoeLossTokens - 1) / kMoeLossTokens);
  const cudaError_t error = start_early(&columns_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, p);
  return error == cudaSuccess ? start_early(&loss_kernel, 1, kThreads, 0, stream, p, blocks) : error;
}

}  // namespace hrm::ops::cuda
