// A row is computed, rounded to the compute dtype and kept in registers until the largest of its elements is known.
#include "ops/quantized/cuda/fp8_rows_block.h"

#include <algorithm>
#include <type_traits>

#include "ops/attention/cuda/qkv_pairs.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/silu.cuh"
#include "ops/quantized/cuda/fp8_rows.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kMostThreads = 512;  // of a block that has one row
// Of SwiGLU. A multiprocessor has room for one block of a long row, and more threads hide more of the memory's latency.
constexpr int kSwigluThreads = 1024;
constexpr int kWarpRows = 4;  // rows of a block whose warps have one each

template <typename T>
constexpr int kPack = 16 / sizeof(T);

// The largest size of what a pack stands for.
template <typename T, int N>
__device__ inline uint32_t larger_of_pack(uint32_t largest, const Pack<T, N>& pack, const float* factors,
                                          int64_t column) {
  float value[N];
#pragma unroll
  for (int k = 0; k < N; ++k) value[k] = to_float(pack.value[k]);
  multiply_columns(value, factors, column);
#pragma unroll
  for (int k = 0; k < N; ++k) largest = larger_bits(largest, value[k]);
  return largest;
}

template <typename T, int N>
__device__ inline void quantise_pack(uint8_t* to, const Pack<T, N>& pack, const float* factors, int64_t column,
                                     float inverse) {
  float value[N];
#pragma unroll
  for (int k = 0; k < N; ++k) value[k] = to_float(pack.value[k]);
  multiply_columns(value, factors, column);
  store_e4m3(to, value, inverse);
}

// What a pack stands for times its factors, kept for the second pass, which so neither converts nor multiplies again.
template <typename T, int N>
__device__ inline uint32_t scale_pack(float (&value)[N], uint32_t largest, const Pack<T, N>& pack, const float* factors,
                                      int64_t column) {
#pragma unroll
  for (int k = 0; k < N; ++k) value[k] = to_float(pack.value[k]);
  multiply_columns(value, factors, column);
#pragma unroll
  for (int k = 0; k < N; ++k) largest = larger_bits(largest, value[k]);
  return largest;
}

// A row has kWarps warps: one warp as in weighted_rms_norm.cu, with the same order of sums, or a block of eight.
template <typename T, int kPacks, int kWarps>
__global__ void __launch_bounds__(kWarps == 1 ? kWarpRows * 32 : kWarps * 32)
    weighted_rms_norm_rows(const WeightedRmsNormRows p) {
  constexpr int N = kPack<T>, kThreads = kWarps * 32;
  wait_for_earlier();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = kWarps == 1 ? int64_t{blockIdx.x} * kWarpRows + thread / 32 : int64_t{blockIdx.x};
  if (row >= p.rows) return;  // whole rows leave
  const int lane = thread % kThreads, packs = static_cast<int>(p.width / N);
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  Pack<T, N> h[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + kThreads * i < packs) h[i] = load_pack<T, N>(x + (lane + kThreads * i) * N);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + kThreads * i < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) squares += to_float(h[i].value[k]) * to_float(h[i].value[k]);
    }
  }
  const float sum = kWarps == 1 ? warp_sum(squares) : block_sum<kWarps>(squares);
  const float rstd = rsqrtf(sum / static_cast<float>(p.width) + p.eps);
  T* const y = p.y.wide == nullptr ? nullptr : static_cast<T*>(p.y.wide) + row * p.width;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (lane + kThreads * i) * N;
    if (lane + kThreads * i < packs) {
      float weight[N];
      load_floats<N>(p.weight + at, weight);
#pragma unroll
      for (int k = 0; k < N; ++k) h[i].value[k] = from_float<T>(to_float(h[i].value[k]) * rstd * weight[k]);
      if (y != nullptr) store_pack<T, N>(y + at, h[i]);
      largest = larger_of_pack(largest, h[i], p.y.factors, at);
    }
  }
  const float size = kWarps == 1 ? __uint_as_float(warp_largest(largest)) : largest_of_block(largest);
  const float scale = scale_for(size), inverse = __fdiv_rn(1.0f, scale);
  uint8_t* const values = p.y.values + row * p.width;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (lane + kThreads * i) * N;
    if (lane + kThreads * i < packs) quantise_pack(values + at, h[i], p.y.factors, at, inverse);
  }
  if (lane == 0) {
    p.rstd[row] = rstd;
    p.y.scales[row] = scale;
  }
}

template <typename T, int kPacks>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_forward_rows(const SwigluRows p) {
  constexpr int N = kPack<T>;
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int packs = static_cast<int>(p.width / N);
  const T* const gate_up = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
  Pack<T, N> gate[kPacks], up[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) {
      gate[i] = load_pack<T, N>(gate_up + at);
      up[i] = load_pack<T, N>(gate_up + p.width + at);
    }
  }
  T* const act = p.act.wide == nullptr ? nullptr : static_cast<T*>(p.act.wide) + row * p.width;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        gate[i].value[k] = gated<T>(to_float(gate[i].value[k]), to_float(up[i].value[k]));
      }
      if (act != nullptr) store_pack<T, N>(act + at, gate[i]);
      largest = larger_of_pack(largest, gate[i], p.act.factors, at);
    }
  }
  const float scale = scale_for(largest_of_block(largest)), inverse = __fdiv_rn(1.0f, scale);
  if (thread == 0) p.act.scales[row] = scale;
  uint8_t* const values = p.act.values + row * p.width;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) quantise_pack(values + at, gate[i], p.act.factors, at, inverse);
  }
}

template <typename T, int kPacks>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_backward_rows(const SwigluBackwardRows p) {
  constexpr int N = kPack<T>;
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int packs = static_cast<int>(p.width / N);
  const T* const gate_up = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
  const T* const grad_act = static_cast<const T*>(p.grad_act) + row * p.width;
  Pack<T, N> gate[kPacks], up[kPacks], grad[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) {
      gate[i] = load_pack<T, N>(gate_up + at);
      up[i] = load_pack<T, N>(gate_up + p.width + at);
      grad[i] = load_pack<T, N>(grad_act + at);
    }
  }
  T* const wide = p.grad.wide == nullptr ? nullptr : static_cast<T*>(p.grad.wide) + row * 2 * p.width;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float x = to_float(gate[i].value[k]), u = to_float(up[i].value[k]);
        gated_gradient<T>(x, u, to_float(grad[i].value[k]), gate[i].value[k], up[i].value[k]);
      }
      if (wide != nullptr) {
        store_pack<T, N>(wide + at, gate[i]);
        store_pack<T, N>(wide + p.width + at, up[i]);
      }
      largest = larger_of_pack(largest, gate[i], p.grad.factors, at);
      largest = larger_of_pack(largest, up[i], p.grad.factors, p.width + at);
    }
  }
  const float scale = scale_for(largest_of_block(largest)), inverse = __fdiv_rn(1.0f, scale);
  if (thread == 0) p.grad.scales[row] = scale;
  uint8_t* const values = p.grad.values + row * 2 * p.width;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (thread + threads * i) * N;
    if (thread + threads * i < packs) {
      quantise_pack(values + at, gate[i], p.grad.factors, at, inverse);
      quantise_pack(values + p.width + at, up[i], p.grad.factors, p.width + at, inverse);
    }
  }
}

// An item is 16 bytes of the lower half of a head and those of the upper half that they are rotated with. Its
// neighbours have the rest of the head. All threads go through all items, because they exchange sums.
template <typename T, int kItems, bool kNorm>
__global__ void __launch_bounds__(kMostThreads) qkv_heads_backward_rows(const QkvBackwardRows p) {
  constexpr int N = kPack<T>;
  wait_for_earlier();
  const QkvRows& s = p.heads.shape;
  const int half = s.head_dim / 2, lanes = half / N, all_heads = s.heads + 2 * s.kv_heads;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  // 32-bit: a 64-bit division costs more than a thread's memory traffic. There are fewer rows than 2^31.
  const uint32_t row32 = blockIdx.x, length = static_cast<uint32_t>(p.heads.length), sample = row32 / length;
  const int64_t row = row32, columns = int64_t{all_heads} * s.head_dim, position = row32 - sample * length;
  T* const wide = p.grad.wide == nullptr ? nullptr : static_cast<T*>(p.grad.wide) + row * columns;
  float scaled[kItems][2][N];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = thread + threads * i, head = item / lanes, pair = (item - head * lanes) * N;
    const bool active = head < all_heads;
    const int part = head < s.heads ? 0 : head < s.heads + s.kv_heads ? 1 : 2;
    const int first = part == 0 ? 0 : s.heads + (part - 1) * s.kv_heads, at = head * s.head_dim + pair;
    Pairs<N> g{};
    if (active) {
      const T* const from = static_cast<const T*>(p.heads.grads[part]) + int64_t{sample} * p.heads.batch_stride[part] +
                            position * p.heads.row_stride[part] + (head - first) * p.heads.head_stride[part] + pair;
      g = load_pairs<T, N>(from, half);
      if (part < 2 && s.cos != nullptr) turn<-1, N>(g, s, row32, pair);
    }
    // Warps without a head that has a norm go past it; the others exchange sums of all lanes.
    if (kNorm && __any_sync(0xffffffffu, active && part < 2) != 0) {
      float weight_low[N] = {}, weight_high[N] = {};
      Pairs<N> x{}, through = g;
      if (active && part < 2) {
        x = load_pairs<T, N>(static_cast<const T*>(p.heads.qkv) + row * columns + at, half);
        const float* const weight = (part == 0 ? s.q_weight : s.k_weight) + pair;
        load_floats<N>(weight, weight_low);
        load_floats<N>(weight + half, weight_high);
      }
      through_head_norm<N>(through, x, weight_low, weight_high, s, lanes, [](int) {});
      if (part < 2) g = through;
    }
    Pack<T, N> low, high;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      low.value[k] = from_float<T>(g.low[k]);
      high.value[k] = from_float<T>(g.high[k]);
    }
    if (!active) continue;
    if (wide != nullptr) {
      store_pack<T, N>(wide + at, low);
      store_pack<T, N>(wide + at + half, high);
    }
    largest = scale_pack(scaled[i][0], largest, low, p.grad.factors, at);
    largest = scale_pack(scaled[i][1], largest, high, p.grad.factors, at + half);
  }
  const float scale = scale_for(largest_of_block(largest)), inverse = __fdiv_rn(1.0f, scale);
  if (thread == 0) p.grad.scales[row] = scale;
  uint8_t* const values = p.grad.values + row * columns;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = thread + threads * i, head = item / lanes, pair = (item - head * lanes) * N;
    if (head >= all_heads) continue;
    const int at = head * s.head_dim + pair;
    store_e4m3(values + at, scaled[i][0], inverse);
    store_e4m3(values + at + half, scaled[i][1], inverse);
  }
}

// Calls run(each) with the number of parts in each thread, rounded up to one that a kernel is made for.
template <class Run>
cudaError_t by_parts(int64_t parts, const Run& run) {
  if (parts <= 1) return run(std::integral_constant<int, 1>{});
  if (parts <= 2) return run(std::integral_constant<int, 2>{});
  return run(std::integral_constant<int, 4>{});
}

constexpr int64_t kFewThreads = 256;  // up to two parts in each thread
constexpr int64_t kMostParts = int64_t{kMostThreads} * 4;
static_assert(kMostParts == 2 * kSwigluThreads);

// Whole warps for `parts`, of which a thread has `each`.
int threads_for(int64_t parts, int each) {
  return static_cast<int>(((parts + each - 1) / each + 31) / 32 * 32);
}

// The kernel `of` a number of parts in each thread, for a block to each row.
template <typename Params, class Of>
cudaError_t start_rows(const Params& p, int64_t rows, int64_t parts, cudaStream_t stream, const Of& of) {
  if (rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  return by_parts((parts + kFewThreads - 1) / kFewThreads, [&](auto each) {
    return start_early(of(each), static_cast<unsigned>(rows), threads_for(parts, each.value), 0, stream, p);
  });
}

// The kernel with one pack or two in each thread.
template <typename Params, class Kernel>
cudaError_t start_swiglu(const Params& p, int64_t packs, cudaStream_t stream, Kernel* one, Kernel* two) {
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  const bool few = packs <= kFewThreads;
  return start_early(few ? one : two, static_cast<unsigned>(p.rows), threads_for(packs, few ? 1 : 2), 0, stream, p);
}

int64_t pack_of(Element element) {
  return element == Element::f32 ? 4 : 8;
}

// Rows of `packs` times 16 bytes that one warp, or a block of eight, keeps.
constexpr int64_t kWarpPacks = 8 * 32, kBlockWarps = 8, kBlockPacks = 4 * kBlockWarps * 32;

int64_t items_of(const QkvRows& s) {
  return int64_t{s.heads + 2 * s.kv_heads} * (s.head_dim / 2 / pack_of(s.element));
}

}  // namespace

bool fits(const WeightedRmsNormRows& p) {
  const int64_t n = pack_of(p.element);
  return p.width % n == 0 && p.width / n <= kBlockPacks;
}

bool fits(const SwigluRows& p) {
  const int64_t n = pack_of(p.element);
  return p.width > 0 && p.width % n == 0 && p.width / n <= kMostParts;
}

bool fits(const SwigluBackwardRows& p) {
  const int64_t n = pack_of(p.element);
  return p.width > 0 && p.width % n == 0 && p.width / n <= kMostParts;
}

bool fits(const QkvBackwardRows& p) {
  const QkvRows& s = p.heads.shape;
  return s.head_dim % (2 * pack_of(s.element)) == 0 && qkv_heads_fit(s) && items_of(s) <= kMostParts &&
         p.heads.grad_weight == nullptr;
}

cudaError_t launch(const WeightedRmsNormRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const int64_t packs = p.width / kPack<T>, each = (packs + 31) / 32;
    const auto start_warps = [&](auto* kernel) {
      return start_early(kernel, static_cast<unsigned>((p.rows + kWarpRows - 1) / kWarpRows), kWarpRows * 32, 0, stream,
                         p);
    };
    if (packs <= kWarpPacks) {
      if (each <= 1) return start_warps(&weighted_rms_norm_rows<T, 1, 1>);
      if (each <= 2) return start_warps(&weighted_rms_norm_rows<T, 2, 1>);
      if (each <= 4) return start_warps(&weighted_rms_norm_rows<T, 4, 1>);
      return start_warps(&weighted_rms_norm_rows<T, 8, 1>);
    }
    return by_parts((packs + kBlockWarps * 32 - 1) / (kBlockWarps * 32), [&](auto parts) {
      return start_early(&weighted_rms_norm_rows<T, parts.value, kBlockWarps>, static_cast<unsigned>(p.rows),
                         kBlockWarps * 32, 0, stream, p);
    });
  });
}

cudaError_t launch(const SwigluRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_swiglu(p, p.width / kPack<T>, stream, &swiglu_forward_rows<T, 1>, &swiglu_forward_rows<T, 2>);
  });
}

cudaError_t launch(const SwigluBackwardRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_swiglu(p, p.width / kPack<T>, stream, &swiglu_backward_rows<T, 1>, &swiglu_backward_rows<T, 2>);
  });
}

cudaError_t launch(const QkvBackwardRows& p, cudaStream_t stream) {
  const QkvRows& s = p.heads.shape;
  if (s.rows == 0 || s.head_dim == 0) return cudaSuccess;
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_element(s.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const int64_t items = items_of(s);
    if (s.q_weight != nullptr) {
      return start_rows(p, s.rows, items, stream,
                        [](auto each) { return &qkv_heads_backward_rows<T, each.value, true>; });
    }
    return start_rows(p, s.rows, items, stream,
                      [](auto each) { return &qkv_heads_backward_rows<T, each.value, false>; });
  });
}

}  // namespace hrm::ops::cuda
