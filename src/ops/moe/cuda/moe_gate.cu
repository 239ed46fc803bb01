// Scores and the best of them, a warp for each token.

#include <cmath>

#include "ops/cuda/common.cuh"
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 4;

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// A float as an integer of the same order; NaN below all.
__device__ inline uint32_t ordered(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// kPerLane: experts 32 * i + lane of each lane.
template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) gate_kernel(const MoeGateForward p) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= p.tokens) return;
  float score[kPerLane];
  const float* logits = p.logits + token * p.experts;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = 32 * i + lane;
    score[i] = expert < p.experts ? logits[expert] : -INFINITY;
  }
  if (p.sigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = 1.0f / (1.0f + expf(-score[i]));
  } else {
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) largest = fmaxf(largest, score[i]);
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = expf(score[i] - largest);
      sum += score[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] /= sum;
  }
  // The order: larger first, then the lower number. Those that are picked, or no experts, are 0.
  uint64_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = 32 * i + lane;
    key[i] = 0;
    if (expert < p.experts) {
      p.scores[token * p.experts + expert] = score[i];
      const float by = p.bias != nullptr ? score[i] + p.bias[expert] : score[i];
      key[i] = uint64_t{ordered(by)} << 32 | static_cast<uint32_t>(0x7fffffff - expert);
    }
  }
  float picked = 0, sum = 0;  // lane k: the k-th pick's score
  int picked_id = 0;
  for (int k = 0; k < p.top_k; ++k) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = key[i] > best ? key[i] : best;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, best, offset);
      best = other > best ? other : best;
    }
    const int expert = 0x7fffffff - static_cast<int>(best & 0xffffffffu);
    float value = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (key[i] == best) {
        key[i] = 0;
        value = score[i];
      }
    }
    value = __shfl_sync(0xffffffffu, value, expert % 32);
    sum += value;
    if (lane == k) {
      picked = value;
      picked_id = expert;
    }
  }
  if (lane < p.top_k) {
    p.ids[token * p.top_k + lane] = picked_id;
    p.weights[token * p.top_k + lane] = p.normalize ? picked / sum : picked;
  }
}

__global__ void __launch_bounds__(32 * kWarps) gate_backward_kernel(const MoeGateBackward p) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= p.tokens) return;
  const float* scores = p.scores + token * p.experts;
  // Lane k: the gradient of the k-th pick's score.
  float of_pick = 0;
  int id = -1;
  if (p.grad_weights != nullptr) {
    float score = 0;
    if (lane < p.top_k) {
      id = p.ids[token * p.top_k + lane];
      of_pick = p.grad_weights[token * p.top_k + lane];
      score = scores[id];
    }
    if (p.normalize) {
      const float sum = warp_sum(score), dot = warp_sum(of_pick * score);
      of_pick = lane < p.top_k ? (of_pick - dot / sum) / sum : 0;
    }
  }
  const auto grad_of = [&](int expert) {
    return p.grad_scores != nullptr ? p.grad_scores[token * p.experts + expert] : 0.0f;
  };
  float dot = 0;
  if (!p.sigmoid) {
    for (int expert = lane; expert < p.experts; expert += 32) dot += grad_of(expert) * scores[expert];
    if (id >= 0) dot += of_pick * scores[id];
    dot = warp_sum(dot);
  }
  for (int base = 0; base < p.experts; base += 32) {
    const int expert = base + lane;
    float grad = expert < p.experts ? grad_of(expert) : 0;
    if (p.grad_weights != nullptr) {
      for (int k = 0; k < p.top_k; ++k) {
        const int other = __shfl_sync(0xffffffffu, id, k);
        const float value = __shfl_sync(0xffffffffu, of_pick, k);
        if (other == expert) grad += value;
      }
    }
    if (expert < p.experts) {
      const float score = scores[expert];
      p.grad_logits[token * p.experts + expert] = p.sigmoid ? grad * score * (1 - score) : score * (grad - dot);
    }
  }
}

}  // namespace

cudaError_t launch(const MoeGateForward& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps);
  if (p.experts <= 32) {
    gate_kernel<1><<<blocks, 32 * kWarps, 0, stream>>>(p);
  } else if (p.experts <= 64) {
    gate_kernel<2><<<blocks, 32 * kWarps, 0, stream>>>(p);
  } else if (p.experts <= 256) {
    gate_kernel<8><<<blocks, 32 * kWarps, 0, stream>>>(p);
  } else if (p.experts <= 1024) {
    gate_kernel<32><<<blocks, 32 * kWarps, 0, stream>>>(p);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t launch(const MoeGateBackward& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps);
  gate_backward_kernel<<<blocks, 32 * kWarps, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
