#include <climits>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/loss/cuda/token_loss.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kThreadVocab = 64;  // up to this vocabulary a thread reads a token's logits alone
constexpr int32_t kIgnored = -100;

template <typename A>
__device__ inline A exponential(A x) {
  return sizeof(A) == 8 ? static_cast<A>(exp(static_cast<double>(x))) : static_cast<A>(expf(static_cast<float>(x)));
}
template <typename A>
__device__ inline A logarithm(A x) {
  return sizeof(A) == 8 ? static_cast<A>(log(static_cast<double>(x))) : static_cast<A>(logf(static_cast<float>(x)));
}

// s(x) of stablemax.
template <typename A>
__device__ inline A stable(A x) {
  return x >= A(0) ? x + A(1) : A(1) / (A(1) - x + A(1e-30));
}

// Sum over the kGroup neighbouring lanes that share a token, in each of them.
template <int kGroup, typename A>
__device__ inline A group_sum(A value) {
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Sum over the block in every thread, always in the same order.
template <typename A>
__device__ inline A sum_of_block(A value) {
  __shared__ A partial[kWarps];
  value = group_sum<32>(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  A total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp];
  __syncthreads();
  return total;
}

// A largest logit and its index. As at::argmax: the first of equal ones, and NaN above all numbers.
struct Best {
  float value = -INFINITY;
  int index = INT_MAX;
  __device__ void take(float other, int other_index) {
    const bool nan = isnan(value), other_nan = isnan(other);
    const bool larger = nan || other_nan ? other_nan && !nan : other > value;
    const bool equal = nan ? other_nan : other == value;
    if (larger || (equal && other_index < index)) {
      value = other;
      index = other_index;
    }
  }
};

// What a token's logits x say: `sum` of s(x), or of exp(x - shift), and the label's own term.
template <typename A>
struct Terms {
  A sum;
  A shift;  // largest logit, for softmax
  A own;    // s(x_y), or x_y - shift
};

template <typename T, typename A, int kGroup, bool kSoftmax>
__device__ inline Terms<A> read_token(const T* x, int vocab, int label, int lane, Best& best) {
  Terms<A> terms{A(0), A(0), A(0)};
  for (int v = lane; v < vocab; v += kGroup) {
    const float value = to_float(x[v]);
    best.take(value, v);
    if constexpr (!kSoftmax) {
      const A s = stable(static_cast<A>(value));
      terms.sum += s;
      if (v == label) terms.own = s;
    }
  }
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
    const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
    best.take(value, index);
  }
  if constexpr (kSoftmax) {
    terms.shift = static_cast<A>(best.value);
    for (int v = lane; v < vocab; v += kGroup) {
      const A apart = static_cast<A>(to_float(x[v])) - terms.shift;
      terms.sum += exponential(apart);
      if (v == label) terms.own = apart;
    }
  }
  terms.sum = group_sum<kGroup>(terms.sum);
  terms.own = group_sum<kGroup>(terms.own);  // one lane holds it, the others 0
  return terms;
}

template <typename T, typename A, int kGroup, bool kSoftmax>
__global__ void __launch_bounds__(kThreads) forward(TokenLossForward p) {
  const int64_t sample = blockIdx.x;
  const T* logits = static_cast<const T*>(p.logits) + sample * p.logits_sample + p.first * p.logits_row;
  const int32_t* labels = p.labels + sample * p.tokens;
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  A loss = 0;
  int labelled = 0, right = 0;
  // All lanes of a group take part in each round; `token` differs between groups alone.
  for (int token = static_cast<int>(threadIdx.x) / kGroup; token < p.tokens; token += kThreads / kGroup) {
    const int32_t label = labels[token];
    if (label == kIgnored) continue;
    Best best;
    const Terms<A> terms =
        read_token<T, A, kGroup, kSoftmax>(logits + token * p.logits_row, p.vocab, label, lane, best);
    if (lane == 0) {
      loss += kSoftmax ? logarithm(terms.sum) - terms.own : -logarithm(terms.own / terms.sum);
      labelled += 1;
      right += best.index == label ? 1 : 0;
    }
  }
  const A total = sum_of_block(loss);
  const int all_labelled = sum_of_block(labelled), all_right = sum_of_block(right);
  if (threadIdx.x == 0) {
    static_cast<A*>(p.loss)[sample] = total / static_cast<A>(max(all_labelled, 1));
    p.labelled[sample] = all_labelled;
    p.right[sample] = all_right;
  }
}

template <typename T, typename A, int kGroup, bool kSoftmax>
__global__ void __launch_bounds__(kThreads) backward(TokenLossBackward p) {
  const int64_t sample = blockIdx.x;
  const T* logits = static_cast<const T*>(p.logits) + sample * p.logits_sample;
  const int32_t* labels = p.labels + sample * p.tokens;
  T* grads = static_cast<T*>(p.grad) + sample * p.positions * p.grad_row;
  int labelled = 0;
  for (int token = static_cast<int>(threadIdx.x); token < p.tokens; token += kThreads) {
    labelled += labels[token] != kIgnored ? 1 : 0;
  }
  labelled = sum_of_block(labelled);
  const A weight = static_cast<const A*>(p.grad_loss)[sample * p.grad_loss_stride] / static_cast<A>(max(labelled, 1));
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  for (int l = static_cast<int>(threadIdx.x) / kGroup; l < p.positions; l += kThreads / kGroup) {
    T* grad = grads + l * p.grad_row;
    const int token = l - p.first;
    const int32_t label = token >= 0 && token < p.tokens ? labels[token] : kIgnored;
    if (label == kIgnored) {
      for (int v = lane; v < p.vocab; v += kGroup) grad[v] = from_float<T>(0.0f);
      continue;
    }
    const T* x = logits + l * p.logits_row;
    Best best;
    const Terms<A> terms = read_token<T, A, kGroup, kSoftmax>(x, p.vocab, label, lane, best);
    for (int v = lane; v < p.vocab; v += kGroup) {
      const A value = static_cast<A>(to_float(x[v]));
      A out = 0;
      if constexpr (kSoftmax) {
        out = exponential(value - terms.shift) / terms.sum - (v == label ? A(1) : A(0));
      } else {
        const A s = stable(value);
        const A slope = value >= A(0) ? A(1) : s * s;
        out = slope / terms.sum - (v == label ? slope / s : A(0));
      }
      grad[v] = from_float<T>(static_cast<float>(out * weight));
    }
  }
}

template <typename T, typename A, int kGroup, bool kSoftmax>
void start_kernel(const TokenLossForward& p, cudaStream_t stream) {
  forward<T, A, kGroup, kSoftmax><<<static_cast<unsigned>(p.samples), kThreads, 0, stream>>>(p);
}
template <typename T, typename A, int kGroup, bool kSoftmax>
void start_kernel(const TokenLossBackward& p, cudaStream_t stream) {
  backward<T, A, kGroup, kSoftmax><<<static_cast<unsigned>(p.samples), kThreads, 0, stream>>>(p);
}

template <typename T, int kGroup, typename Params>
void start_kind(const Params& p, cudaStream_t stream) {
  if (p.softmax) {
    start_kernel<T, float, kGroup, true>(p, stream);
  } else if (p.wide) {
    start_kernel<T, double, kGroup, false>(p, stream);
  } else {
    start_kernel<T, float, kGroup, false>(p, stream);
  }
}

template <typename T, typename Params>
cudaError_t start(const Params& p, cudaStream_t stream) {
  if (p.samples > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (p.vocab <= kThreadVocab) {
    start_kind<T, 1>(p, stream);
  } else {
    start_kind<T, 32>(p, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const TokenLossForward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const TokenLossBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
