#include "ops/act/cuda/act_loss.h"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 512;
constexpr int kSumWarps = kSumThreads / 32;
constexpr int kMetrics = 8;

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Binary cross-entropy of a logit: (1 - t) x - log(sigmoid(x)).
__device__ inline float binary_cross_entropy(float x, float target) {
  return (1.0f - target) * x + fmaxf(-x, 0.0f) + log1pf(expf(-fabsf(x)));
}

__device__ inline double read(const void* values, bool wide, int64_t i) {
  return wide ? static_cast<const double*>(values)[i] : static_cast<double>(static_cast<const float*>(values)[i]);
}

__global__ void __launch_bounds__(kThreads) q_target(ActQTarget p) {
  const int64_t slot = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= p.slots) return;
  const float halt = p.q[slot * p.q_slot], go_on = p.q[slot * p.q_slot + p.q_head];
  // As at::maximum: NaN wins.
  const float larger = isnan(go_on) || go_on > halt ? go_on : halt;
  p.target[slot] = sigmoid(p.steps[slot] >= p.max_steps || isnan(halt) ? halt : larger);
}

__global__ void __launch_bounds__(kSumThreads) sums(ActLossForward p) {
  double sum[kMetrics] = {};
  for (int64_t slot = threadIdx.x; slot < p.slots; slot += kSumThreads) {
    const int labelled = p.labelled[slot], right = p.right[slot];
    const bool all_right = right == labelled;
    const float halt = p.q[slot * p.q_slot];
    if (p.halted[slot] && labelled > 0) {
      sum[0] += 1;
      sum[1] += static_cast<double>(right) / labelled;
      sum[2] += all_right ? 1 : 0;
      sum[3] += (halt >= 0) == all_right ? 1 : 0;
      sum[4] += p.steps[slot];
    }
    sum[5] += read(p.token_loss, p.wide, slot);
    sum[6] += binary_cross_entropy(halt, all_right ? 1.0f : 0.0f);
    if (p.target != nullptr) {
      sum[7] += binary_cross_entropy(p.q[slot * p.q_slot + p.q_head], p.target[slot]);
    }
  }
  __shared__ double partial[kMetrics][kSumWarps];
#pragma unroll
  for (int i = 0; i < kMetrics; ++i) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
    if (threadIdx.x % 32 == 0) partial[i][threadIdx.x / 32] = sum[i];
  }
  __syncthreads();
  __shared__ double total[kMetrics];
  if (threadIdx.x < kMetrics) {
    double all = 0;
    for (int warp = 0; warp < kSumWarps; ++warp) all += partial[threadIdx.x][warp];
    total[threadIdx.x] = all;
    p.metrics[threadIdx.x] = all;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const double loss = total[5] + 0.5 * (total[6] + total[7]);
    if (p.wide) {
      *static_cast<double*>(p.loss) = loss;
    } else {
      *static_cast<float*>(p.loss) = static_cast<float>(loss);
    }
  }
}

__global__ void __launch_bounds__(kThreads) grad_of_q(ActLossBackward p) {
  const int64_t slot = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= p.slots) return;
  const auto scale = static_cast<float>(0.5 * read(p.grad_loss, p.wide, 0));
  const float* q = p.q + slot * p.q_slot;
  const float all_right = p.right[slot] == p.labelled[slot] ? 1.0f : 0.0f;
  p.grad_q[2 * slot] = (sigmoid(q[0]) - all_right) * scale;
  p.grad_q[2 * slot + 1] = p.target != nullptr ? (sigmoid(q[p.q_head]) - p.target[slot]) * scale : 0.0f;
}

unsigned blocks_for(int64_t slots) {
  return static_cast<unsigned>((slots + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch(const ActQTarget& params, cudaStream_t stream) {
  q_target<<<blocks_for(params.slots), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch(const ActLossForward& params, cudaStream_t stream) {
  sums<<<1, kSumThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch(const ActLossBackward& params, cudaStream_t stream) {
  grad_of_q<<<blocks_for(params.slots), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
