#pragma once
// What the kernels of decoding attention share.

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {

constexpr float kLog2e = 1.44269504088896341f;

// Where the positions from `begin` on are in a cache of `places`: p at p mod places. As those in use are at most
// `places`, none needs a division of its own.
struct CachePlaces {
  int places, first;

  __device__ inline CachePlaces(int64_t places, int64_t begin)
      : places(static_cast<int>(places)), first(static_cast<int>(begin < places ? begin : begin % places)) {}
  // Of the position begin + i.
  __device__ inline int operator()(int i) const { return i + first < places ? i + first : i + first - places; }
};

template <typename T>
__device__ inline float rounded(float value) {
  return to_float(from_float<T>(value));
}

// One head of q or k, normalised and rotated by a warp; the result has been rounded to T.
template <typename T, int HD, typename To>
__device__ inline void prepare(const T* from, const float* weight, float eps, const float* cos, const float* sin,
                               To* to, int lane) {
  constexpr int kHalf = HD / 2, kPairs = (kHalf + 31) / 32;
  float a[kPairs], b[kPairs], squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + 32 * j;
    a[j] = i < kHalf ? to_float(from[i]) : 0;
    b[j] = i < kHalf ? to_float(from[i + kHalf]) : 0;
    squares += a[j] * a[j] + b[j] * b[j];
  }
  const float rstd = weight != nullptr ? rsqrtf(warp_sum(squares) / HD + eps) : 1;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + 32 * j;
    if (i >= kHalf) continue;
    if (weight != nullptr) {
      a[j] = rounded<T>(a[j] * rstd * weight[i]);
      b[j] = rounded<T>(b[j] * rstd * weight[i + kHalf]);
    }
    to[i] = from_float<To>(rounded<T>(a[j] * cos[i] - b[j] * sin[i]));
    to[i + kHalf] = from_float<To>(rounded<T>(b[j] * cos[i] + a[j] * sin[i]));
  }
}

}  // namespace hrm::ops::cuda
