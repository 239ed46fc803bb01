#include "ops/norm/cuda/weighted_rms_norm.h"

#include <cuda_pipeline.h>

#include <algorithm>
#include <type_traits>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/packed.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 4;      // rows of a block where a warp owns a row
constexpr int kLoopWarps = 8;  // warps of a block that owns one row
constexpr int kColumns = 256;  // columns of a block that sums the weight's gradient of wide rows

// A warp owns a row and keeps it in registers: kPacks times 16 bytes in each lane.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kWarps * 32) forward_registers(WeightedRmsNormForward p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T);
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;  // the whole warp leaves
  const int lane = static_cast<int>(threadIdx.x) % 32, packs = static_cast<int>(p.dim / N);
  const T* x = static_cast<const T*>(p.x) + row * p.dim;
  Pack<T, N> h[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + 32 * i < packs) h[i] = load_pack<T, N>(x + (lane + 32 * i) * N);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + 32 * i < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) squares += to_float(h[i].value[k]) * to_float(h[i].value[k]);
    }
  }
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(p.dim) + p.eps);
  T* y = static_cast<T*>(p.y) + row * p.dim;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = (lane + 32 * i) * N;
    if (lane + 32 * i < packs) {
      float weight[N];
      load_floats<N>(p.weight + at, weight);
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(h[i].value[k]) * rstd * weight[k]);
      store_pack<T, N>(y + at, out);
    }
  }
  if (p.rstd != nullptr && lane == 0) p.rstd[row] = rstd;
}

// Rows that a warp of the backward pass has under way in shared memory, so that registers are left for more warps. None
// where the three inputs of a row are so long that they would not fit on every GPU.
template <int kPacks>
constexpr int kRowsAhead = kPacks <= 4 ? 2 : 0;

template <int kPacks>
constexpr size_t kAheadBytes = size_t{kWarps} * kRowsAhead<kPacks> * 3 * kPacks * 32 * 16;

// What a lane has of a row's three inputs.
template <typename T, int kPacks>
struct BackwardRow {
  static constexpr int N = 16 / sizeof(T);
  Pack<T, N> g[kPacks], x[kPacks], g2[kPacks];

  __device__ void load(const WeightedRmsNormBackward& p, int64_t row, int lane, int packs) {
    const int64_t base = row * p.dim;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (lane + 32 * i < packs) {
        const int64_t at = base + (lane + 32 * i) * N;
        g[i] = load_pack<T, N>(static_cast<const T*>(p.grad_y) + at);
        x[i] = load_pack<T, N>(static_cast<const T*>(p.x) + at);
        if (p.grad_x2 != nullptr) g2[i] = load_pack<T, N>(static_cast<const T*>(p.grad_x2) + at);
      }
    }
  }

  // The same by way of shared memory, of which `place` is this lane's: nothing that another lane reads or writes.
  static __device__ void fetch(const WeightedRmsNormBackward& p, int64_t row, int lane, int packs, uint4* place) {
    if (row < p.rows) {
      const int64_t base = row * p.dim;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (lane + 32 * i < packs) {
          const int64_t at = base + (lane + 32 * i) * N;
          __pipeline_memcpy_async(place + 32 * i, static_cast<const T*>(p.grad_y) + at, 16);
          __pipeline_memcpy_async(place + 32 * (kPacks + i), static_cast<const T*>(p.x) + at, 16);
          if (p.grad_x2 != nullptr) {
            __pipeline_memcpy_async(place + 32 * (2 * kPacks + i), static_cast<const T*>(p.grad_x2) + at, 16);
          }
        }
      }
    }
    __pipeline_commit();
  }
  __device__ void take(const uint4* place, int lane, int packs, bool second) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (lane + 32 * i >= packs) continue;
      g[i] = reinterpret_cast<const Pack<T, N>&>(place[32 * i]);
      x[i] = reinterpret_cast<const Pack<T, N>&>(place[32 * (kPacks + i)]);
      if (second) g2[i] = reinterpret_cast<const Pack<T, N>&>(place[32 * (2 * kPacks + i)]);
    }
  }
};

// A warp strides over the rows and keeps the weight's gradient of all of them in registers.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kWarps * 32, kPacks <= 3 ? 4 : 1) backward_registers(WeightedRmsNormBackward p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T), kAhead = kRowsAhead<kPacks>;
  extern __shared__ uint4 shared[];
  using Row = BackwardRow<T, kPacks>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int packs = static_cast<int>(p.dim / N);
  const int64_t step = int64_t{gridDim.x} * kWarps, first = int64_t{blockIdx.x} * kWarps + warp;
  uint4* place = shared + warp * kAhead * 3 * kPacks * 32 + lane;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) Row::fetch(p, first + i * step, lane, packs, place + i * 3 * kPacks * 32);
  float grad_weight[kPacks][N] = {}, weight[kPacks][N];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + 32 * i < packs) load_floats<N>(p.weight + (lane + 32 * i) * N, weight[i]);
  }
  int turn = 0;
  for (int64_t row = first; row < p.rows; row += step) {
    Row in;
    uint4* const own = place + turn * 3 * kPacks * 32;
    if constexpr (kAhead > 0) {
      __pipeline_wait_prior(kAhead - 1);
      in.take(own, lane, packs, p.grad_x2 != nullptr);
      turn = turn + 1 < kAhead ? turn + 1 : 0;
    } else {
      in.load(p, row, lane, packs);
    }
    const float rstd = p.rstd[row];
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (lane + 32 * i < packs) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float along = to_float(in.g[i].value[k]) * (to_float(in.x[i].value[k]) * rstd);
          grad_weight[i][k] += along;
          dot += along * weight[i][k];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      keep_packed(in.g[i]);
      keep_packed(in.x[i]);
    }
    const float mean = warp_sum(dot) / static_cast<float>(p.dim);
    T* const to = static_cast<T*>(p.grad_x) + row * p.dim;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (lane + 32 * i < packs) {
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float n = to_float(in.x[i].value[k]) * rstd;
          float value = rstd * (to_float(in.g[i].value[k]) * weight[i][k] - n * mean);
          if (p.grad_x2 != nullptr) value += to_float(in.g2[i].value[k]);
          out.value[k] = from_float<T>(value);
        }
        store_pack<T, N>(to + (lane + 32 * i) * N, out);
      }
    }
    if constexpr (kAhead > 0) Row::fetch(p, row + kAhead * step, lane, packs, own);
  }
  if (p.grad_weight == nullptr) return;
  __syncthreads();                                      // no row is under way any more
  auto* const sums = reinterpret_cast<float*>(shared);  // (kWarps, dim)
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (lane + 32 * i < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) sums[warp * p.dim + (lane + 32 * i) * N + k] = grad_weight[i][k];
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < p.dim; i += kWarps * 32) {
    float total = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) total += sums[other * p.dim + i];
    p.partial[int64_t{blockIdx.x} * p.dim + i] = total;
  }
}

// Rows of any width and alignment: a block owns one.
template <typename T>
__global__ void __launch_bounds__(kLoopWarps * 32) forward_loop(WeightedRmsNormForward p) {
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.dim;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.dim; i += kLoopWarps * 32) squares += to_float(x[i]) * to_float(x[i]);
  const float rstd = rsqrtf(block_sum<kLoopWarps>(squares) / static_cast<float>(p.dim) + p.eps);
  T* y = static_cast<T*>(p.y) + row * p.dim;
  for (int64_t i = threadIdx.x; i < p.dim; i += kLoopWarps * 32) {
    y[i] = from_float<T>(to_float(x[i]) * rstd * p.weight[i]);
  }
  if (p.rstd != nullptr && threadIdx.x == 0) p.rstd[row] = rstd;
}

template <typename T>
__global__ void __launch_bounds__(kLoopWarps * 32) backward_loop(WeightedRmsNormBackward p) {
  wait_for_earlier();
  const int64_t base = int64_t{blockIdx.x} * p.dim;
  const T* const g = static_cast<const T*>(p.grad_y) + base;
  const T* const x = static_cast<const T*>(p.x) + base;
  const T* const g2 = p.grad_x2 != nullptr ? static_cast<const T*>(p.grad_x2) + base : nullptr;
  const float rstd = p.rstd[blockIdx.x];
  float dot = 0;
  for (int64_t i = threadIdx.x; i < p.dim; i += kLoopWarps * 32) {
    dot += to_float(g[i]) * p.weight[i] * (to_float(x[i]) * rstd);
  }
  const float mean = block_sum<kLoopWarps>(dot) / static_cast<float>(p.dim);
  T* const to = static_cast<T*>(p.grad_x) + base;
  for (int64_t i = threadIdx.x; i < p.dim; i += kLoopWarps * 32) {
    const float value = rstd * (to_float(g[i]) * p.weight[i] - to_float(x[i]) * rstd * mean);
    to[i] = from_float<T>(g2 != nullptr ? value + to_float(g2[i]) : value);
  }
}

// Part blockIdx.y of the rows, for a thread's column.
template <typename T>
__global__ void __launch_bounds__(kColumns) weight_loop(WeightedRmsNormBackward p) {
  wait_for_earlier();
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  if (column >= p.dim) return;
  float total = 0;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t at = row * p.dim + column;
    total += to_float(static_cast<const T*>(p.grad_y)[at]) * (to_float(static_cast<const T*>(p.x)[at]) * p.rstd[row]);
  }
  p.partial[int64_t{blockIdx.y} * p.dim + column] = total;
}

// Calls `run` with the number of packs in each lane, rounded up to one that a kernel is made for.
template <class Run>
cudaError_t by_packs(int64_t packs, const Run& run) {
  if (packs <= 1) return run(std::integral_constant<int, 1>{});
  if (packs <= 2) return run(std::integral_constant<int, 2>{});
  if (packs <= 3) return run(std::integral_constant<int, 3>{});
  if (packs <= 4) return run(std::integral_constant<int, 4>{});
  return run(std::integral_constant<int, 8>{});
}

template <typename T>
bool fits_registers(int64_t dim) {
  constexpr int64_t N = 16 / sizeof(T);
  return dim % N == 0 && dim / N <= 32 * 8;
}

template <typename T>
cudaError_t start(const WeightedRmsNormForward& p, cudaStream_t stream) {
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (!fits_registers<T>(p.dim) || !aligned16(p.x) || !aligned16(p.y) || !aligned16(p.weight)) {
    return start_early(&forward_loop<T>, static_cast<unsigned>(p.rows), kLoopWarps * 32, 0, stream, p);
  }
  const auto blocks = static_cast<unsigned>((p.rows + kWarps - 1) / kWarps);
  return by_packs((p.dim * static_cast<int64_t>(sizeof(T)) / 16 + 31) / 32, [&](auto packs) {
    const auto kernel = &forward_registers<T, packs.value>;
    const cudaError_t error = want_shared_memory(kernel);  // stands between products of tiles in decoding
    return error == cudaSuccess ? start_early(kernel, blocks, kWarps * 32, 0, stream, p) : error;
  });
}

template <typename T>
cudaError_t start(const WeightedRmsNormBackward& p, cudaStream_t stream) {
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  const bool vector = fits_registers<T>(p.dim) && aligned16(p.grad_y) && aligned16(p.x) && aligned16(p.grad_x2) &&
                      aligned16(p.grad_x) && aligned16(p.weight);
  int parts = kNormParts;
  cudaError_t error = cudaSuccess;
  if (vector) {
    parts = static_cast<int>(std::min<int64_t>((p.rows + kWarps - 1) / kWarps, kNormParts));
    const size_t sums = p.grad_weight != nullptr ? static_cast<size_t>(p.dim) * kWarps * sizeof(float) : 0;
    error = by_packs((p.dim * static_cast<int64_t>(sizeof(T)) / 16 + 31) / 32, [&](auto packs) {
      const size_t shared = std::max(sums, kAheadBytes<packs.value>);
      return start_early(&backward_registers<T, packs.value>, static_cast<unsigned>(parts), kWarps * 32, shared, stream,
                         p);
    });
  } else {
    error = start_early(&backward_loop<T>, static_cast<unsigned>(p.rows), kLoopWarps * 32, 0, stream, p);
    if (error == cudaSuccess && p.grad_weight != nullptr) {
      parts = static_cast<int>(std::min<int64_t>(p.rows, kNormParts));
      const dim3 grid(static_cast<unsigned>((p.dim + kColumns - 1) / kColumns), static_cast<unsigned>(parts));
      error = start_early(&weight_loop<T>, grid, kColumns, 0, stream, p);
    }
  }
  if (error != cudaSuccess || p.grad_weight == nullptr) return error;
  return start_column_sum(p.partial, p.grad_weight, parts, p.dim, stream);
}

}  // namespace

cudaError_t launch(const WeightedRmsNormForward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const WeightedRmsNormBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
