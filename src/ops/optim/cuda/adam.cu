#include "ops/optim/cuda/adam.h"

#include "ops/cuda/block_items.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;

// A kernel may use constants of the host, but not call its functions.
template <AdamRule kRule>
constexpr bool kHasFirst = has_first_moment(kRule);
template <AdamRule kRule>
constexpr bool kHasSecond = has_second_moment(kRule);

// What a block needs to know beside its elements.
struct Constants {
  float scale, keep, decay, rate, correction2_sqrt, beta1, one_minus_beta1, beta2, one_minus_beta2, eps,
      one_minus_decay;
};

template <typename T>
__device__ inline T* ahead(T* pointer, int64_t offset) {
  return pointer == nullptr ? nullptr : pointer + offset;
}

struct Pointers {
  float* p;
  const float* g;
  float* m;
  float* v;
  float* average;
  uint16_t* copy;

  __device__ Pointers operator+(int64_t offset) const {
    return {p + offset, g + offset, ahead(m, offset), ahead(v, offset), ahead(average, offset), ahead(copy, offset)};
  }
};

// Sums over a thread's elements: how far they moved, and how large they were, both squared.
struct Moved {
  float distance = 0, size = 0;
};

// Moments that the rule lacks are not looked at.
template <AdamRule kRule>
__device__ inline void update(const Constants& c, float& p, float g, float& m, float& v) {
  if constexpr (kRule == AdamRule::muon_apply) {
    p = p * c.keep - c.rate * g;
    return;
  }
  g *= c.scale;
  if constexpr (kHasSecond<kRule>) {
    m += (g - m) * c.one_minus_beta1;
    v = c.beta2 * v + c.one_minus_beta2 * g * g;
    const float root = sqrtf(v) / c.correction2_sqrt;
    p = p * c.keep - c.rate * (kRule == AdamRule::atan2 ? atan2f(m, root) : m / (root + c.eps));
  } else if constexpr (kRule == AdamRule::lion) {
    // Rounded as the reference does: a fused multiply-add could turn the sign of what cancels.
    const float blend = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(c.one_minus_beta1, g));
    const float sign = static_cast<float>(blend > 0) - static_cast<float>(blend < 0);
    p = p * c.keep - c.rate * sign;
    m += (g - m) * c.one_minus_beta2;
  } else if constexpr (kRule == AdamRule::sgd) {
    g += c.decay * p;
    m = c.beta1 * m + g;
    p -= c.rate * (g + c.beta1 * m);
  } else if constexpr (kRule == AdamRule::muon_direction) {
    m += (g - m) * c.one_minus_beta1;
    p = g + (m - g) * c.beta1;
  }
}

__device__ inline uint16_t low_bits(float value, bool half) {
  return half ? __half_as_ushort(__float2half_rn(value)) : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

template <AdamRule kRule, bool kAverage, int N>
__device__ inline void update_range(const Constants& c, const Pointers& at, int64_t size, bool half, Moved& moved) {
  for (int64_t i = int64_t{threadIdx.x} * N; i < size; i += int64_t{kThreads} * N) {
    Pack<float, N> p = load_pack<float, N>(at.p + i);
    const Pack<float, N> g = load_pack<float, N>(at.g + i);
    Pack<float, N> m, v;
    if constexpr (kHasFirst<kRule>) m = load_pack<float, N>(at.m + i);
    if constexpr (kHasSecond<kRule>) v = load_pack<float, N>(at.v + i);
    Pack<float, N> average;
    if (kAverage) average = load_pack<float, N>(at.average + i);
    Pack<uint16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float old = p.value[k];
      update<kRule>(c, p.value[k], g.value[k], m.value[k], v.value[k]);
      const float step = p.value[k] - old;
      moved.distance += step * step;
      moved.size += old * old;
      if (kAverage) average.value[k] += (p.value[k] - average.value[k]) * c.one_minus_decay;
      low.value[k] = low_bits(p.value[k], half);
    }
    store_pack<float, N>(at.p + i, p);
    if constexpr (kHasFirst<kRule>) store_pack<float, N>(at.m + i, m);
    if constexpr (kHasSecond<kRule>) store_pack<float, N>(at.v + i, v);
    if (kAverage) store_pack<float, N>(at.average + i, average);
    if (at.copy != nullptr) store_pack<uint16_t, N>(at.copy + i, low);
  }
}

__device__ inline bool all_aligned(const Pointers& at) {
  const uintptr_t wide = reinterpret_cast<uintptr_t>(at.p) | reinterpret_cast<uintptr_t>(at.g) |
                         reinterpret_cast<uintptr_t>(at.m) | reinterpret_cast<uintptr_t>(at.v) |
                         reinterpret_cast<uintptr_t>(at.average);
  return wide % 16 == 0 && reinterpret_cast<uintptr_t>(at.copy) % 8 == 0;
}

template <AdamRule kRule, bool kAverage>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ AdamParams args) {
  if (*args.skip != 0) return;
  const int block = static_cast<int>(blockIdx.x), tensor = item_of_block(args, args.count, block);
  const int64_t offset = int64_t{block - args.first_block[tensor]} * kElementsPerBlock;
  const int64_t left = args.size[tensor] - offset;
  const int64_t size = left < kElementsPerBlock ? left : kElementsPerBlock;

  const float lr = *args.lr * args.lr_factor[tensor];
  Constants c;
  c.scale = *args.grad_scale;
  c.decay = args.weight_decay[tensor];
  c.keep = 1 - lr * c.decay;
  c.rate = lr;
  if constexpr (kHasSecond<kRule>) {
    // 1 - beta^t = -expm1(t log beta): exact where beta^t is close to 1, which a float power is not.
    const float t = *args.step + 1;
    c.rate = lr / -expm1f(t * args.log_beta1);
    c.correction2_sqrt = sqrtf(-expm1f(t * args.log_beta2));
  }
  c.beta1 = args.beta1;
  c.one_minus_beta1 = args.one_minus_beta1;
  c.beta2 = args.beta2;
  c.one_minus_beta2 = args.one_minus_beta2;
  c.eps = args.eps;
  c.one_minus_decay = args.one_minus_decay;

  const Pointers at = Pointers{args.param[tensor],      args.grad[tensor],    args.exp_avg[tensor],
                               args.exp_avg_sq[tensor], args.average[tensor], args.copy[tensor]} +
                      offset;
  Moved moved;
  if (all_aligned(at)) {
    const int64_t whole = size / 4 * 4;
    update_range<kRule, kAverage, 4>(c, at, whole, args.half_copies, moved);
    update_range<kRule, kAverage, 1>(c, at + whole, size - whole, args.half_copies, moved);
  } else {
    update_range<kRule, kAverage, 1>(c, at, size, args.half_copies, moved);
  }
  if (args.partial != nullptr) {
    const float distance = block_sum<kThreads / 32>(moved.distance);
    const float old = block_sum<kThreads / 32>(moved.size);
    if (threadIdx.x == 0) args.partial[block] = make_double2(distance, old);
  }
}

// One block: a thread's share of the partial sums, then a tree, always in the same order.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const AdamFinish args) {
  const bool skipped = *args.skip != 0;
  if (threadIdx.x == 0 && !skipped) *args.step += 1;
  if (args.update_ratio == nullptr) return;
  if (skipped) {
    if (threadIdx.x < (args.squares ? 2 : 1)) args.update_ratio[threadIdx.x] = 0;
    return;
  }
  double2 sum = make_double2(0, 0);
  for (int64_t i = threadIdx.x; i < args.num_partial; i += kFinishThreads) {
    sum.x += args.partial[i].x;
    sum.y += args.partial[i].y;
  }
  __shared__ double2 shared[kFinishThreads];
  shared[threadIdx.x] = sum;
  for (int half = kFinishThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x].x += shared[threadIdx.x + half].x;
      shared[threadIdx.x].y += shared[threadIdx.x + half].y;
    }
  }
  if (threadIdx.x != 0) return;
  if (args.squares) {
    args.update_ratio[0] = shared[0].x;
    args.update_ratio[1] = shared[0].y;
  } else {
    *args.update_ratio = sqrt(shared[0].x / shared[0].y);
  }
}

template <AdamRule kRule>
cudaError_t start(const AdamParams& params, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(params.first_block[params.count]);
  const auto kernel = params.average[0] != nullptr ? step_kernel<kRule, true> : step_kernel<kRule, false>;
  kernel<<<blocks, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const AdamParams& params, cudaStream_t stream) {
  switch (params.rule) {
    case AdamRule::atan2:
      return start<AdamRule::atan2>(params, stream);
    case AdamRule::adamw:
      return start<AdamRule::adamw>(params, stream);
    case AdamRule::lion:
      return start<AdamRule::lion>(params, stream);
    case AdamRule::sgd:
      return start<AdamRule::sgd>(params, stream);
    case AdamRule::muon_direction:
      return start<AdamRule::muon_direction>(params, stream);
    case AdamRule::muon_apply:
      return start<AdamRule::muon_apply>(params, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch(const AdamFinish& params, cudaStream_t stream) {
  finish_kernel<<<1, params.update_ratio == nullptr ? 1 : kFinishThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
