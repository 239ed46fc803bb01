#include "ops/loss/cuda/softmax_loss_part.h"

#include <cmath>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kIgnored = -100;

// Of some logits x: the largest, and the sums of e = exp(x - largest) and of e (x - largest). No logit: -inf, 0, 0.
struct Facts {
  float largest, sum, moment;

  // As relative to another largest logit, not below this one.
  __device__ Facts relative_to(float to) const {
    if (sum == 0) return {to, 0, 0};
    const float shift = largest - to, factor = expf(shift);
    return {to, sum * factor, (moment + sum * shift) * factor};
  }
};

__device__ inline Facts join(const Facts& a, const Facts& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, a.sum + b.sum, 0};  // NaN stays
  const Facts x = a.relative_to(largest), y = b.relative_to(largest);
  return {largest, x.sum + y.sum, x.moment + y.moment};
}

__device__ inline Facts of_warp(Facts own) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    own = join(own, {__shfl_xor_sync(0xffffffffu, own.largest, offset), __shfl_xor_sync(0xffffffffu, own.sum, offset),
                     __shfl_xor_sync(0xffffffffu, own.moment, offset)});
  }
  return own;
}

// In the first warp, always in the same order.
__device__ inline Facts of_block(const Facts& own) {
  __shared__ Facts warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Facts part = of_warp(own);
  if (lane == 0) warps[warp] = part;
  __syncthreads();
  if (warp > 0) return part;
  return of_warp(lane < kWarps ? warps[lane] : Facts{-INFINITY, 0, 0});
}

__device__ inline int64_t label_of(const SoftmaxLossPart& p, int64_t row) {
  return p.wide_labels ? static_cast<const int64_t*>(p.labels)[row] : static_cast<const int32_t*>(p.labels)[row];
}

// The label's place among this part's logits, or -1.
__device__ inline int64_t place_of(const SoftmaxLossPart& p, int64_t label) {
  const int64_t place = label - p.first;
  return label == kIgnored || place < 0 || place >= p.vocab ? -1 : place;
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) softmax_loss_facts_kernel(SoftmaxLossFacts p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x, packs = p.part.vocab / N;
  const T* const x = static_cast<const T*>(p.part.logits) + row * p.part.pitch;
  Facts own{-INFINITY, 0, 0};
  for (int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    const Pack<T, N> values = load_pack<T, N>(x + pack * N);
    float largest = to_float(values.value[0]);
#pragma unroll
    for (int k = 1; k < N; ++k) largest = fmaxf(largest, to_float(values.value[k]));
    Facts more{largest, 0, 0};
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float below = to_float(values.value[k]) - largest, e = expf(below);
      more.sum += e;
      if (p.with_mean) more.moment = fmaf(e, below, more.moment);
    }
    own = join(own, more);
  }
  own = of_block(own);
  if (threadIdx.x != 0) return;
  const int64_t place = place_of(p.part, label_of(p.part, row));
  float* const facts = p.facts + row * (p.with_mean ? 4 : 3);
  facts[0] = own.largest;
  facts[1] = own.sum;
  facts[2] = place < 0 ? 0 : to_float(x[place]);
  if (p.with_mean) facts[3] = own.moment;
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) softmax_loss_of_parts_kernel(SoftmaxLossOfParts p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x, packs = p.part.vocab / N, label = label_of(p.part, row);
  // All threads alike, in the order of parts.
  const auto fact = [&](int part, int i) { return p.facts[(part * p.part.rows + row) * p.values + i]; };
  float largest = fact(0, 0);
  for (int part = 1; part < p.parts; ++part) largest = fmaxf(largest, fact(part, 0));
  float sum = 0, of_label = 0;
  for (int part = 0; part < p.parts; ++part) {
    sum += fact(part, 1) * expf(fact(part, 0) - largest);
    of_label += fact(part, 2);
  }
  if (threadIdx.x == 0) p.loss[row] = label == kIgnored ? 0 : logf(sum) + largest - of_label;
  if (p.weights == nullptr) return;
  const float weight = label == kIgnored ? 0 : p.weights[row];
  const int64_t place = place_of(p.part, label);
  T* const x = static_cast<T*>(p.part.logits) + row * p.part.pitch;
  for (int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    Pack<T, N> values = load_pack<T, N>(x + pack * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float p_of = expf(to_float(values.value[k]) - largest) / sum;
      const float gradient = p_of - (pack * N + k == place ? 1.0f : 0.0f);
      values.value[k] = from_float<T>(gradient * weight);
    }
    store_pack<T, N>(x + pack * N, values);
  }
}

template <typename T>
bool in_packs(const SoftmaxLossPart& p) {
  constexpr int N = 16 / sizeof(T);
  return aligned16(p.logits) && p.vocab % N == 0 && (p.pitch % N == 0 || p.rows == 1);
}

// The kernel for 16 bytes at a time, or that for single logits.
template <class Params, class... Args>
cudaError_t start(void (*wide)(Args...), void (*single)(Args...), bool packs, const Params& p, cudaStream_t stream) {
  if (p.part.rows > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  return start_early(packs ? wide : single, static_cast<unsigned>(p.part.rows), kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const SoftmaxLossFacts& p, cudaStream_t stream) {
  return by_element(p.part.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start(&softmax_loss_facts_kernel<T, 16 / sizeof(T)>, &softmax_loss_facts_kernel<T, 1>, in_packs<T>(p.part),
                 p, stream);
  });
}

cudaError_t launch(const SoftmaxLossOfParts& p, cudaStream_t stream) {
  return by_element(p.part.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start(&softmax_loss_of_parts_kernel<T, 16 / sizeof(T)>, &softmax_loss_of_parts_kernel<T, 1>,
                 in_packs<T>(p.part), p, stream);
  });
}

}  // namespace hrm::ops::cuda
