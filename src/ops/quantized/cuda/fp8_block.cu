#include "ops/quantized/cuda/fp8_block.h"

#include <algorithm>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/silu.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_sizes.cuh"
#include "ops/quantized/cuda/fp8_tile.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = kTileThreads / 32;
constexpr int kNormThreads = 512, kNormWarps = kNormThreads / 32;
constexpr int kNormRows = kTileRows / kNormWarps;  // of a warp
// Blocks that keep every GPU of today busy; fewer tiles of rows share out their columns.
constexpr int64_t kEnoughBlocks = 264;

template <typename T>
constexpr int kPack = 16 / sizeof(T);

// Calls part(row, column) with each place of a tile where this thread has kPack<T> elements.
template <typename T, class Part>
__device__ inline void for_tile(int64_t first_row, int64_t first_column, int64_t rows, int64_t columns,
                                const Part& part) {
  constexpr int N = kPack<T>, kPacks = kTileColumns / N;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kPacks; i += kTileThreads) {
    const int row = i / kPacks, column = i % kPacks * N;
    if (first_row + row < rows && first_column + column < columns) part(row, column);
  }
}

// A block has 64 rows. Its warps find the factors of their rows; then all go over the columns, which the cache still
// has. Two tiles take turns, so that one barrier for each is enough.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const RmsNormFp8 p) {
  __shared__ Fp8Tile tiles[2];
  __shared__ float factors[kTileRows];
  constexpr int N = kPack<T>, kPacks = kTileColumns / N, kEach = kTileRows * kPacks / kNormThreads;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first_row = int64_t{blockIdx.x} * kTileRows;
  const auto* x = static_cast<const T*>(p.x);
  auto *values = static_cast<uint8_t*>(p.values), *transposed = static_cast<uint8_t*>(p.transposed);
  wait_for_earlier();
  const float scale = p.slot[0];
  // The rows of a warp at the same time, so that their loads are.
  float squares[kNormRows] = {};
#pragma unroll 2
  for (int64_t column = int64_t{lane} * N; column < p.width; column += 32 * N) {
    Pack<T, N> h[kNormRows];
#pragma unroll
    for (int i = 0; i < kNormRows; ++i) {
      const int64_t row = first_row + warp * kNormRows + i;
      h[i] = load_pack<T, N>(x + (row < p.rows ? row : p.rows - 1) * p.width + column);
    }
#pragma unroll
    for (int i = 0; i < kNormRows; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) squares[i] += to_float(h[i].value[k]) * to_float(h[i].value[k]);
    }
  }
#pragma unroll
  for (int i = 0; i < kNormRows; ++i) {
    const int row = warp * kNormRows + i;
    const float rstd = rsqrtf(warp_sum(squares[i]) / static_cast<float>(p.width) + p.eps);
    if (lane > 0 || first_row + row >= p.rows) continue;
    factors[row] = rstd;
    if (blockIdx.y == 0) p.rstd[first_row + row] = rstd;
  }
  __syncthreads();
  Fp8Sizes<T> sizes;
  int turn = 0;
  for (int64_t first_column = int64_t{blockIdx.y} * kTileColumns; first_column < p.width;
       first_column += int64_t{gridDim.y} * kTileColumns) {
    Fp8Tile& tile = tiles[turn];
    turn ^= 1;
    // All loads before the first store, behind which the compiler would not move them up.
    Pack<T, N> in[kEach];
    bool has[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = static_cast<int>(threadIdx.x) + i * kNormThreads;
      const int64_t row = first_row + place / kPacks, column = first_column + place % kPacks * N;
      has[i] = row < p.rows && column < p.width;
      if (has[i]) in[i] = load_pack<T, N>(x + row * p.width + column);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!has[i]) continue;
      const int place = static_cast<int>(threadIdx.x) + i * kNormThreads, row = place / kPacks;
      const int column = place % kPacks * N;
      float weight[N];
      load_floats<N>(p.weight + first_column + column, weight);
      Pack<T, N> y;
#pragma unroll
      for (int k = 0; k < N; ++k) y.value[k] = from_float<T>(to_float(in[i].value[k]) * factors[row] * weight[k]);
      const Pack<uint8_t, N> out = sizes.quantize(y, scale);
      store_pack(values + (first_row + row) * p.width + first_column + column, out);
      if (transposed != nullptr) tile.keep(row, column, out);
    }
    if (transposed == nullptr) continue;
    __syncthreads();
    tile.store_transposed<true, kNormThreads>(transposed, first_row, first_column, p.rows, p.width);
  }
  record_by_block<kNormWarps>(p.slot, sizes.bits(), sizes.clamped, p.rows);
}

// The arithmetic of norm_kernel, so that the bits are the same.
template <typename T>
__global__ void __launch_bounds__(kTileThreads) norm_transposed_kernel(const RmsNormTransposedFp8 p) {
  __shared__ Fp8Tile tile;
  constexpr int N = kPack<T>, kPacks = kTileColumns / N, kEach = kTileRows * kPacks / kTileThreads;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, first_column = int64_t{blockIdx.x} * kTileColumns;
  const auto* x = static_cast<const T*>(p.x);
  static_assert(kTileThreads % kPacks == 0);  // so that a thread has the same columns of each of its rows
  const int column = static_cast<int>(threadIdx.x) % kPacks * N;
  const bool inside = first_column + column < p.width;
  wait_for_earlier();
  const float scale = p.slot[0];
  float weight[N] = {};
  if (inside) load_floats<N>(p.weight + first_column + column, weight);
  Fp8Sizes<T> sizes;  // of no use: the forward pass has told them
  Pack<T, N> in[kEach];
  float factor[kEach];
  bool has[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t row = first_row + (static_cast<int>(threadIdx.x) + i * kTileThreads) / kPacks;
    has[i] = inside && row < p.rows;
    if (!has[i]) continue;
    in[i] = load_pack<T, N>(x + row * p.width + first_column + column);
    factor[i] = p.rstd[row];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!has[i]) continue;
    Pack<T, N> y;
#pragma unroll
    for (int k = 0; k < N; ++k) y.value[k] = from_float<T>(to_float(in[i].value[k]) * factor[i] * weight[k]);
    tile.keep((static_cast<int>(threadIdx.x) + i * kTileThreads) / kPacks, column, sizes.quantize(y, scale));
  }
  __syncthreads();
  tile.store_transposed<true>(static_cast<uint8_t*>(p.transposed), first_row, first_column, p.rows, p.width);
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads) swiglu_kernel(const SwigluFp8 p) {
  constexpr int N = kPack<T>;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, first_column = int64_t{blockIdx.x} * kTileColumns;
  const auto* gate_up = static_cast<const T*>(p.gate_up);
  wait_for_earlier();
  const float scale = p.slot[0];
  Fp8Sizes<T> sizes;
  for_tile<T>(first_row, first_column, p.rows, p.width, [&](int row, int column) {
    const T* from = gate_up + (first_row + row) * 2 * p.width + first_column + column;
    const Pack<T, N> gate = load_pack<T, N>(from), up = load_pack<T, N>(from + p.width);
    Pack<T, N> act;
#pragma unroll
    for (int k = 0; k < N; ++k) act.value[k] = gated<T>(to_float(gate.value[k]), to_float(up.value[k]));
    store_pack(static_cast<uint8_t*>(p.values) + (first_row + row) * p.width + first_column + column,
               sizes.quantize(act, scale));
  });
  record_by_block<kWarps>(p.slot, sizes.bits(), sizes.clamped, p.rows);
}

template <typename T, bool kE5m2>
__global__ void __launch_bounds__(kTileThreads) swiglu_gradient_kernel(const SwigluGradientFp8 p) {
  __shared__ Fp8Tile gates, ups, acts;
  constexpr int N = kPack<T>;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, first_column = int64_t{blockIdx.x} * kTileColumns;
  const auto *gate_up = static_cast<const T*>(p.gate_up), *grad_act = static_cast<const T*>(p.grad_act);
  auto *values = static_cast<uint8_t*>(p.values), *transposed = static_cast<uint8_t*>(p.transposed);
  wait_for_earlier();
  const float scale = p.slot[0], act_scale = p.act_slot[0];
  Fp8Sizes<T> sizes, act_sizes;  // the second is of no use: the forward pass has told it
  for_tile<T>(first_row, first_column, p.rows, p.width, [&](int row, int column) {
    const int64_t at = (first_row + row) * 2 * p.width + first_column + column;
    const Pack<T, N> gate = load_pack<T, N>(gate_up + at), up = load_pack<T, N>(gate_up + at + p.width);
    const Pack<T, N> grad = load_pack<T, N>(grad_act + (first_row + row) * p.width + first_column + column);
    Pack<T, N> grad_gate, grad_up, act;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = to_float(gate.value[k]), u = to_float(up.value[k]);
      gated_gradient<T>(x, u, to_float(grad.value[k]), grad_gate.value[k], grad_up.value[k]);
      act.value[k] = gated<T>(x, u);
    }
    const Pack<uint8_t, N> gate8 = sizes.template quantize<kE5m2>(grad_gate, scale),
                           up8 = sizes.template quantize<kE5m2>(grad_up, scale);
    if (values != nullptr) {
      store_pack(values + at, gate8);
      store_pack(values + at + p.width, up8);
    }
    if (transposed != nullptr) {
      gates.keep(row, column, gate8);
      ups.keep(row, column, up8);
    }
    if (p.act_transposed != nullptr) acts.keep(row, column, act_sizes.quantize(act, act_scale));
  });
  record_by_block<kWarps>(p.slot, sizes.bits(), sizes.clamped, p.rows);
  __syncthreads();
  if (transposed != nullptr) {
    gates.store_transposed<true>(transposed, first_row, first_column, p.rows, p.width);
    ups.store_transposed<true>(transposed + p.width * p.rows, first_row, first_column, p.rows, p.width);
  }
  if (p.act_transposed != nullptr) {
    acts.store_transposed<true>(static_cast<uint8_t*>(p.act_transposed), first_row, first_column, p.rows, p.width);
  }
}

// Element i of a head is rotated with element i + head_dim / 2, which some other thread has: each reads both.
template <typename T, bool kE5m2>
__global__ void __launch_bounds__(kTileThreads) qkv_gradient_kernel(const QkvGradientFp8 p) {
  __shared__ Fp8Tile tile;
  constexpr int N = kPack<T>;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, first_column = int64_t{blockIdx.x} * kTileColumns;
  const int64_t columns = int64_t{p.heads + 2 * p.kv_heads} * p.head_dim;
  auto *values = static_cast<uint8_t*>(p.values), *transposed = static_cast<uint8_t*>(p.transposed);
  const int half = p.head_dim / 2;
  wait_for_earlier();
  const float scale = p.slot[0];
  Fp8Sizes<T> sizes;
  for_tile<T>(first_row, first_column, p.rows, columns, [&](int tile_row, int tile_column) {
    const int64_t row = first_row + tile_row;
    // 32-bit: a 64-bit division costs more than the pack's memory.
    const uint32_t row32 = static_cast<uint32_t>(row), sample = row32 / static_cast<uint32_t>(p.length);
    const int column = static_cast<int>(first_column) + tile_column, head = column / p.head_dim;
    const int part = head < p.heads ? 0 : head < p.heads + p.kv_heads ? 1 : 2;
    const int head_of_part = head - (part == 0 ? 0 : p.heads + (part - 1) * p.kv_heads);
    const int at = column - head * p.head_dim;
    const T* from = static_cast<const T*>(p.grads[part]) + sample * p.batch_stride[part] +
                    (row - int64_t{sample} * p.length) * p.row_stride[part] + head_of_part * p.head_stride[part];
    Pack<T, N> g = load_pack<T, N>(from + at);
    if (part < 2 && p.cos != nullptr) {
      const bool upper = at >= half;
      const int pair = upper ? at - half : at;
      const Pack<T, N> other = load_pack<T, N>(from + (upper ? pair : pair + half));
      float cos[N], sin[N];
      const int64_t angle = int64_t{row32 % static_cast<uint32_t>(p.table_rows)} * half + pair;
      load_floats<N>(p.cos + angle, cos);
      load_floats<N>(p.sin + angle, sin);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float own = to_float(g.value[k]), across = to_float(other.value[k]);
        g.value[k] = from_float<T>(own * cos[k] + (upper ? -across : across) * sin[k]);
      }
    }
    const Pack<uint8_t, N> out = sizes.template quantize<kE5m2>(g, scale);
    if (values != nullptr) store_pack(values + row * columns + column, out);
    if (transposed != nullptr) tile.keep(tile_row, tile_column, out);
  });
  record_by_block<kWarps>(p.slot, sizes.bits(), sizes.clamped, p.rows);
  if (transposed == nullptr) return;
  __syncthreads();
  tile.store_transposed<true>(transposed, first_row, first_column, p.rows, columns);
}

// The grid of a matrix's tiles; false where CUDA has none so large.
bool tiles_of(int64_t rows, int64_t columns, dim3& grid) {
  const int64_t across = (columns + kTileColumns - 1) / kTileColumns, down = (rows + kTileRows - 1) / kTileRows;
  grid = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
  return across <= INT32_MAX && down <= 65535;
}

}  // namespace

cudaError_t launch(const RmsNormFp8& params, cudaStream_t stream) {
  if (params.rows == 0 || params.width == 0) return cudaSuccess;
  const int64_t down = (params.rows + kTileRows - 1) / kTileRows;
  const int64_t across = (params.width + kTileColumns - 1) / kTileColumns;
  if (down > INT32_MAX) return cudaErrorInvalidConfiguration;
  const int64_t shares = std::clamp<int64_t>(kEnoughBlocks / down, 1, std::min<int64_t>(across, 65535));
  const dim3 grid(static_cast<unsigned>(down), static_cast<unsigned>(shares));
  return by_element(params.element, [&](auto type) {
    return start_early(&norm_kernel<TypeIn<decltype(type)>>, grid, kNormThreads, 0, stream, params);
  });
}

cudaError_t launch(const RmsNormTransposedFp8& params, cudaStream_t stream) {
  dim3 grid;
  if (params.rows == 0 || params.width == 0) return cudaSuccess;
  if (!tiles_of(params.rows, params.width, grid)) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) {
    return start_early(&norm_transposed_kernel<TypeIn<decltype(type)>>, grid, kTileThreads, 0, stream, params);
  });
}

cudaError_t launch(const SwigluFp8& params, cudaStream_t stream) {
  dim3 grid;
  if (params.rows == 0 || params.width == 0) return cudaSuccess;
  if (!tiles_of(params.rows, params.width, grid)) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) {
    return start_early(&swiglu_kernel<TypeIn<decltype(type)>>, grid, kTileThreads, 0, stream, params);
  });
}

cudaError_t launch(const SwigluGradientFp8& params, cudaStream_t stream) {
  dim3 grid;
  if (params.rows == 0 || params.width == 0) return cudaSuccess;
  if (!tiles_of(params.rows, params.width, grid)) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_early(params.e5m2 ? &swiglu_gradient_kernel<T, true> : &swiglu_gradient_kernel<T, false>, grid,
                       kTileThreads, 0, stream, params);
  });
}

cudaError_t launch(const QkvGradientFp8& params, cudaStream_t stream) {
  dim3 grid;
  const int64_t columns = int64_t{params.heads + 2 * params.kv_heads} * params.head_dim;
  if (params.rows == 0 || columns == 0) return cudaSuccess;
  if (!tiles_of(params.rows, columns, grid)) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_early(params.e5m2 ? &qkv_gradient_kernel<T, true> : &qkv_gradient_kernel<T, false>, grid, kTileThreads,
                       0, stream, params);
  });
}

}  // namespace hrm::ops::cuda
