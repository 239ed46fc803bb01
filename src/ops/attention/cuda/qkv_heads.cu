#include "ops/attention/cuda/qkv_heads.h"

#include <algorithm>

#include "ops/attention/cuda/qkv_pairs.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// 32-bit indices if the item count allows: a 64-bit division costs more than a thread's memory traffic.
template <typename T, int N, bool kNorm, typename Index>
__global__ void __launch_bounds__(kThreads) forward(QkvHeadsForward p, Index items) {
  wait_for_earlier();
  const QkvRows& s = p.shape;
  const int half = s.head_dim / 2, lanes = half / N, heads = s.heads + s.kv_heads;
  const Index index = Index{blockIdx.x} * kThreads + threadIdx.x;
  // With a norm, all lanes of a warp continue, because they exchange sums.
  const bool active = index < items;
  if (!kNorm && !active) return;
  const Index lane = index % lanes, rest = index / lanes, row = rest / heads;
  const int head = static_cast<int>(rest - row * heads), pair = static_cast<int>(lane) * N;
  Pairs<N> x{};
  if (active) {
    x = load_pairs<T, N>(static_cast<const T*>(p.from) + row * p.from_pitch + head * s.head_dim + pair, half);
  }
  if constexpr (kNorm) {
    const float rstd = head_rstd<N>(x, s, lanes);
    if (!active) return;
    const float* const weight = (head < s.heads ? s.q_weight : s.k_weight) + pair;
    float low[N], high[N];
    load_floats<N>(weight, low);
    load_floats<N>(weight + half, high);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x.low[i] = x.low[i] * rstd * low[i];
      x.high[i] = x.high[i] * rstd * high[i];
    }
  }
  if (s.cos != nullptr) turn<1, N>(x, s, row, pair);
  store_pairs<T, N>(static_cast<T*>(p.to) + row * p.to_pitch + head * s.head_dim + pair, half, x);
}

// The work in addition to the rotation: none, norms of q and k, or norms whose weights need gradients.
enum class Norms { none, frozen, trained };

// blockIdx.y: 0 for q's heads, 1 for k's, 2 for v's. With a norm, a thread always has the same columns. It keeps the
// sums for weights that need a gradient in registers.
template <typename T, int N, Norms kNorms, typename Index>
__global__ void __launch_bounds__(kThreads) backward(QkvHeadsBackward p) {
  constexpr bool kNorm = kNorms != Norms::none, kSums = kNorms == Norms::trained;
  wait_for_earlier();
  const QkvRows& s = p.shape;
  const int part = static_cast<int>(blockIdx.y), half = s.head_dim / 2, lanes = half / N;
  const int heads = part == 0 ? s.heads : s.kv_heads, first = part == 0 ? 0 : s.heads + (part - 1) * s.kv_heads;
  const int64_t pitch = int64_t{s.heads + 2 * s.kv_heads} * s.head_dim;
  const auto items = static_cast<Index>(s.rows * heads * lanes), step = static_cast<Index>(gridDim.x) * kThreads;
  const auto length = static_cast<Index>(p.length);
  float low[N], high[N];
  Pairs<N> sums{};
  const int pair =
      static_cast<int>(threadIdx.x % static_cast<unsigned>(lanes)) * N;  // kThreads % lanes is 0 with a norm
  if (kNorm && part < 2) {
    const float* const weight = (part == 0 ? s.q_weight : s.k_weight) + pair;
    load_floats<N>(weight, low);
    load_floats<N>(weight + half, high);
  }
  for (Index begin = static_cast<Index>(blockIdx.x) * kThreads; begin < items; begin += step) {
    const Index index = begin + threadIdx.x;
    const bool active = index < items;
    if (!kNorm && !active) break;
    const Index rest = index / lanes, row = rest / heads, sample = row / length;
    const int head = static_cast<int>(rest - row * heads);
    const int at_pair = kNorm ? pair : static_cast<int>(index - rest * lanes) * N;
    const int64_t at = row * pitch + int64_t{first + head} * s.head_dim + at_pair;
    Pairs<N> g{}, x{};
    if (active) {
      const T* const from = static_cast<const T*>(p.grads[part]) + sample * p.batch_stride[part] +
                            (row - sample * length) * p.row_stride[part] + head * p.head_stride[part] + at_pair;
      g = load_pairs<T, N>(from, half);
      if (kNorm && part < 2) x = load_pairs<T, N>(static_cast<const T*>(p.qkv) + at, half);
      if (part < 2 && s.cos != nullptr) turn<-1, N>(g, s, row, at_pair);
    }
    if (kNorm && part < 2) {
      through_head_norm<N>(g, x, low, high, s, lanes, [&](int i) {
        if constexpr (kSums) {
          sums.low[i] += g.low[i] * x.low[i];
          sums.high[i] += g.high[i] * x.high[i];
        }
      });
    }
    if (active) store_pairs<T, N>(static_cast<T*>(p.grad_qkv) + at, half, g);
  }
  if (!kSums || part == 2) return;
  // Adds lanes with the same columns in a warp, then the warps, each in a fixed order.
  __shared__ float warps[kWarps][64 * N];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int offset = 16; offset >= lanes; offset /= 2) {
      sums.low[i] += __shfl_xor_sync(0xffffffffu, sums.low[i], offset);
      sums.high[i] += __shfl_xor_sync(0xffffffffu, sums.high[i], offset);
    }
    if (lane < lanes) {
      warps[warp][pair + i] = sums.low[i];
      warps[warp][half + pair + i] = sums.high[i];
    }
  }
  __syncthreads();
  float* const to = p.partial + (int64_t{part} * kQkvParts + blockIdx.x) * s.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < s.head_dim; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) total += warps[other][i];
    to[i] = total;
  }
}

bool has_norm(const QkvRows& s) {
  return s.q_weight != nullptr;
}

template <typename T>
bool packs_fit(const QkvRows& s) {
  constexpr int N = 16 / sizeof(T);
  return s.head_dim % (2 * N) == 0 && aligned16(s.cos) && aligned16(s.sin) && aligned16(s.q_weight) &&
         aligned16(s.k_weight);
}

template <typename T, int N, bool kNorm>
cudaError_t start_items(const QkvHeadsForward& p, cudaStream_t stream) {
  const QkvRows& s = p.shape;
  const int64_t items = s.rows * (s.heads + s.kv_heads) * (s.head_dim / 2 / N);
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (items <= INT32_MAX) {
    return start_early(&forward<T, N, kNorm, uint32_t>, static_cast<unsigned>(blocks), kThreads, 0, stream, p,
                       static_cast<uint32_t>(items));
  }
  return start_early(&forward<T, N, kNorm, int64_t>, static_cast<unsigned>(blocks), kThreads, 0, stream, p, items);
}

template <typename T, int N, Norms kNorms>
cudaError_t start_items(const QkvHeadsBackward& p, cudaStream_t stream) {
  const QkvRows& s = p.shape;
  const int64_t items = s.rows * std::max(s.heads, s.kv_heads) * (s.head_dim / 2 / N);
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  // Only the weight sums need a fixed number of blocks. Without them, there is one thread per item.
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const dim3 grid(kNorms == Norms::trained ? kQkvParts : static_cast<unsigned>(blocks), 3);
  const bool narrow = items <= INT32_MAX / 2;
  const cudaError_t error = narrow ? start_early(&backward<T, N, kNorms, uint32_t>, grid, kThreads, 0, stream, p)
                                   : start_early(&backward<T, N, kNorms, int64_t>, grid, kThreads, 0, stream, p);
  if (error != cudaSuccess || kNorms != Norms::trained) return error;
  for (int part = 0; part < 2; ++part) {
    const cudaError_t sum = start_column_sum(p.partial + int64_t{part} * kQkvParts * s.head_dim,
                                             p.grad_weight + part * s.head_dim, kQkvParts, s.head_dim, stream);
    if (sum != cudaSuccess) return sum;
  }
  return cudaSuccess;
}

bool aligned(const QkvHeadsForward& p, int n) {
  return aligned16(p.from) && aligned16(p.to) && p.from_pitch % n == 0 && p.to_pitch % n == 0;
}
bool aligned(const QkvHeadsBackward& p, int n) {
  bool out = aligned16(p.grad_qkv) && aligned16(p.qkv);
  for (int part = 0; part < 3; ++part) {
    out = out && aligned16(p.grads[part]) && p.batch_stride[part] % n == 0 && p.row_stride[part] % n == 0 &&
          p.head_stride[part] % n == 0;
  }
  return out;
}

template <typename T>
cudaError_t start(const QkvHeadsForward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool vector = packs_fit<T>(p.shape) && aligned(p, N);
  if (has_norm(p.shape)) return vector ? start_items<T, N, true>(p, stream) : cudaErrorInvalidValue;
  return vector ? start_items<T, N, false>(p, stream) : start_items<T, 1, false>(p, stream);
}

template <typename T>
cudaError_t start(const QkvHeadsBackward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool vector = packs_fit<T>(p.shape) && aligned(p, N);
  if (!has_norm(p.shape)) {
    return vector ? start_items<T, N, Norms::none>(p, stream) : start_items<T, 1, Norms::none>(p, stream);
  }
  if (!vector) return cudaErrorInvalidValue;
  return p.grad_weight != nullptr ? start_items<T, N, Norms::trained>(p, stream)
                                  : start_items<T, N, Norms::frozen>(p, stream);
}

}  // namespace

bool qkv_heads_fit(const QkvRows& s) {
  if (s.head_dim % 2 != 0) return false;
  if (!has_norm(s)) return true;
  const int n = s.element == Element::f32 ? 4 : 8, lanes = s.head_dim / (2 * n);
  return s.head_dim % (2 * n) == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0 && aligned16(s.cos) &&
         aligned16(s.sin) && aligned16(s.q_weight) && aligned16(s.k_weight);
}

cudaError_t launch(const QkvHeadsForward& params, cudaStream_t stream) {
  return by_element(params.shape.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const QkvHeadsBackward& params, cudaStream_t stream) {
  return by_element(params.shape.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
