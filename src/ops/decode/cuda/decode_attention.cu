#include "ops/decode/cuda/decode_attention.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/decode/cuda/decode_attention_heads.h"
#include "ops/decode/cuda/decode_attention_shared.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kUnroll = 4;  // positions in flight in each group of lanes

// The softmax of some positions so far: the greatest score, in powers of two, the sum of 2^(score - greatest), and the
// values weighted so.
template <int N>
struct Mixed {
  float greatest, sum, value[N];

  // Takes in what was found elsewhere.
  __device__ inline void add(float other_greatest, float other_sum, const float (&other)[N]) {
    const float top = fmaxf(greatest, other_greatest);
    if (top == -INFINITY) return;
    const float mine = exp2f(greatest - top), theirs = exp2f(other_greatest - top);
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int n = 0; n < N; ++n) value[n] = value[n] * mine + other[n] * theirs;
    greatest = top;
  }
};

// A block has one head of one row. Groups of G lanes take positions in turn, 16 bytes of each in a lane; in the end the
// groups' results are put together. The new position goes from the projection into the first group, so that nothing
// waits for the cache to be written. kAhead: few blocks wait for memory more than they read, so the first positions are
// asked for at once, if they are there already while the kernel before still runs, and further ones while those
// before them are worked on. Many blocks hide that wait behind each other, and want the registers.
template <typename T, int HD, bool kAhead>
__global__ void __launch_bounds__(kThreads) decode(DecodeAttention p) {
  constexpr int N = 16 / sizeof(T), G = HD / N, kGroups = kThreads / G;
  static_assert(G <= 32 && 32 % G == 0);
  if (!kAhead || !p.steady) wait_for_earlier();
  const int heads = static_cast<int>(p.heads), kv_heads = static_cast<int>(p.kv_heads), share = heads / kv_heads;
  const int row = static_cast<int>(blockIdx.x) / heads, head = static_cast<int>(blockIdx.x) % heads, kv = head / share;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t place = p.lengths[row];
  const T* projected = static_cast<const T*>(p.qkv) + int64_t{row} * (heads + 2 * kv_heads) * HD;
  const T* new_value = projected + (heads + kv_heads + kv) * HD;
  T* keys = static_cast<T*>(p.keys) + row * p.key_row + kv * p.key_head;
  T* values = static_cast<T*>(p.values) + row * p.value_row + kv * p.value_head;

  const int group = static_cast<int>(threadIdx.x) / G, first = static_cast<int>(threadIdx.x) % G * N;
  const int64_t begin = p.window > 0 && place + 1 > p.window ? place + 1 - p.window : 0;
  const CachePlaces in_cache(p.places, begin);
  const int count = static_cast<int>(place - begin);  // of the positions from the cache
  struct Positions {
    Pack<T, N> k[kUnroll], v[kUnroll];
  };
  const auto load = [&](Positions& to, int start) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = start + u * kGroups + group;
      if (at < count) {
        const int64_t from = int64_t{in_cache(at)} * HD + first;
        to.k[u] = load_pack<T, N>(keys + from);
        to.v[u] = load_pack<T, N>(values + from);
      }
    }
  };
  Positions next;
  if constexpr (kAhead) {
    load(next, 0);
    if (p.steady) wait_for_earlier();
  }

  __shared__ float q_shared[HD], k_shared[HD];
  const float *cos = p.cos + place * (HD / 2), *sin = p.sin + place * (HD / 2);
  if (warp == 0) prepare<T, HD>(projected + head * HD, p.q_weight, p.eps, cos, sin, q_shared, lane);
  if (warp == 1) prepare<T, HD>(projected + (heads + kv) * HD, p.k_weight, p.eps, cos, sin, k_shared, lane);
  __syncthreads();
  if (head % share == 0 && threadIdx.x < HD) {
    const int64_t to = int64_t{in_cache(count)} * HD + threadIdx.x;
    keys[to] = from_float<T>(k_shared[threadIdx.x]);
    values[to] = new_value[threadIdx.x];
  }

  const float scale = rsqrtf(static_cast<float>(HD)) * kLog2e;
  float q[N];
  Mixed<N> mixed;
  mixed.greatest = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    q[n] = q_shared[first + n] * scale;
    mixed.greatest += q[n] * k_shared[first + n];
    mixed.value[n] = group == 0 ? to_float(new_value[first + n]) : 0;
  }
#pragma unroll
  for (int offset = G / 2; offset > 0; offset /= 2) {
    mixed.greatest += __shfl_xor_sync(0xffffffffu, mixed.greatest, offset);
  }
  mixed.sum = group == 0 ? 1 : 0;
  if (group != 0) mixed.greatest = -INFINITY;

  for (int start = 0; start < count; start += kGroups * kUnroll) {
    Positions now;
    if constexpr (kAhead) {
      now = next;
      load(next, start + kGroups * kUnroll);
    } else {
      load(now, start);
    }
    float score[kUnroll], top = -INFINITY;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool there = start + u * kGroups + group < count;
      score[u] = 0;
#pragma unroll
      for (int n = 0; n < N; ++n) score[u] += there ? q[n] * to_float(now.k[u].value[n]) : 0;
#pragma unroll
      for (int offset = G / 2; offset > 0; offset /= 2) score[u] += __shfl_xor_sync(0xffffffffu, score[u], offset);
      if (!there) score[u] = -INFINITY;
      top = fmaxf(top, score[u]);
    }
    if (top == -INFINITY) continue;  // nothing here for this group; its lanes agree
    float sum = 0, value[N] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const float weight = exp2f(score[u] - top);
      sum += weight;
#pragma unroll
      for (int n = 0; n < N; ++n) value[n] += score[u] > -INFINITY ? weight * to_float(now.v[u].value[n]) : 0;
    }
    mixed.add(top, sum, value);
  }

  // The groups of a warp, then the warps.
#pragma unroll
  for (int offset = G; offset < 32; offset *= 2) {
    float other[N];
    const float other_greatest = __shfl_xor_sync(0xffffffffu, mixed.greatest, offset);
    const float other_sum = __shfl_xor_sync(0xffffffffu, mixed.sum, offset);
#pragma unroll
    for (int n = 0; n < N; ++n) other[n] = __shfl_xor_sync(0xffffffffu, mixed.value[n], offset);
    mixed.add(other_greatest, other_sum, other);
  }
  __shared__ float value_shared[kWarps][HD], greatest_shared[kWarps], sum_shared[kWarps];
  if (lane < G) {
#pragma unroll
    for (int n = 0; n < N; ++n) value_shared[warp][first + n] = mixed.value[n];
    if (lane == 0) {
      greatest_shared[warp] = mixed.greatest;
      sum_shared[warp] = mixed.sum;
    }
  }
  __syncthreads();
  if (threadIdx.x >= HD) return;
  float top = -INFINITY, sum = 0, value = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, greatest_shared[w]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float weight = exp2f(greatest_shared[w] - top);
    sum += weight * sum_shared[w];
    value += weight * value_shared[w][threadIdx.x];
  }
  static_cast<T*>(p.out)[(int64_t{row} * heads + head) * HD + threadIdx.x] = from_float<T>(value / sum);
}

// Blocks for which there is room at once, of the kernel that loads ahead.
constexpr int kAheadBlocks = 2;

template <typename T, int HD>
cudaError_t start(const DecodeAttention& p, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(p.rows * p.heads);
  const bool ahead = p.rows * p.heads <= int64_t{kAheadBlocks} * processors;
  return ahead ? start_early(&decode<T, HD, true>, blocks, kThreads, 0, stream, p)
               : start_early(&decode<T, HD, false>, blocks, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const DecodeAttention& params, cudaStream_t stream) {
  if (fits_heads(params)) return launch_heads(params, stream);
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (params.head_dim == 32) return start<T, 32>(params, stream);
    if (params.head_dim == 64) return start<T, 64>(params, stream);
    if (params.head_dim == 128) return start<T, 128>(params, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace hrm::ops::cuda
