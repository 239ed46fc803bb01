#pragma once
// A head's elements by pairs that are rotated together, for the kernels of the heads. No torch headers.

#include "ops/attention/cuda/qkv_heads.h"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {

// A lane's part of a head: N elements of the lower half, and the N elements of the upper half that they are rotated
// with.
template <int N>
struct Pairs {
  float low[N], high[N];
};

template <typename T, int N>
__device__ inline Pairs<N> load_pairs(const T* from, int half) {
  const Pack<T, N> low = load_pack<T, N>(from), high = load_pack<T, N>(from + half);
  Pairs<N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    out.low[i] = to_float(low.value[i]);
    out.high[i] = to_float(high.value[i]);
  }
  return out;
}

template <typename T, int N>
__device__ inline void store_pairs(T* to, int half, const Pairs<N>& pairs) {
  Pack<T, N> low, high;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    low.value[i] = from_float<T>(pairs.low[i]);
    high.value[i] = from_float<T>(pairs.high[i]);
  }
  store_pack<T, N>(to, low);
  store_pack<T, N>(to + half, high);
}

// kSign -1 rotates back.
template <int kSign, int N, typename Index>
__device__ inline void turn(Pairs<N>& x, const QkvRows& s, Index row, int pair) {
  float cos[N], sin[N];
  const int64_t at = int64_t{row % static_cast<Index>(s.table_rows)} * (s.head_dim / 2) + pair;
  load_floats<N>(s.cos + at, cos);
  load_floats<N>(s.sin + at, sin);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float a = x.low[i], b = x.high[i];
    x.low[i] = a * cos[i] - kSign * b * sin[i];
    x.high[i] = b * cos[i] + kSign * a * sin[i];
  }
}

// Sum over the lanes of a head (neighbours, a power of two), returned in each of them.
__device__ inline float head_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

template <int N>
__device__ inline float head_rstd(const Pairs<N>& x, const QkvRows& s, int lanes) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) squares += x.low[i] * x.low[i] + x.high[i] * x.high[i];
  return rsqrtf(head_sum(squares, lanes) / static_cast<float>(s.head_dim) + s.eps);
}

// The gradient g of a head's norm with weight (low, high) becomes that of what the norm read, x, which is normalised.
// In between calls each(i) for the weight's gradient, when g has not been multiplied by the weight.
template <int N, class Each>
__device__ inline void through_head_norm(Pairs<N>& g, Pairs<N>& x, const float (&low)[N], const float (&high)[N],
                                         const QkvRows& s, int lanes, const Each& each) {
  const float rstd = head_rstd<N>(x, s, lanes);
  float dot = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x.low[i] *= rstd;
    x.high[i] *= rstd;
    each(i);
    g.low[i] *= low[i];
    g.high[i] *= high[i];
    dot += g.low[i] * x.low[i] + g.high[i] * x.high[i];
  }
  const float mean = head_sum(dot, lanes) / static_cast<float>(s.head_dim);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g.low[i] = rstd * (g.low[i] - x.low[i] * mean);
    g.high[i] = rstd * (g.high[i] - x.high[i] * mean);
  }
}

}  // namespace hrm::ops::cuda
