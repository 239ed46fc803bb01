#include "ops/quantized/cuda/fp8_weight_rows.h"

#include "ops/cuda/block_items.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_rows.cuh"
#include "ops/quantized/cuda/fp8_tile.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kSlotFloats = 8;

// The tile of a block: 64 x 128 of one matrix.
struct Tile {
  int matrix;
  int64_t rows, columns, first_row, first_column;

  __device__ explicit Tile(const Fp8WeightRows& p) {
    const int block = static_cast<int>(blockIdx.x);
    matrix = item_of_block(p, p.count, block);
    rows = p.rows[matrix];
    columns = p.columns[matrix];
    const int across = static_cast<int>((columns + kTileColumns - 1) / kTileColumns);
    const int at = block - p.first_block[matrix];
    first_row = int64_t{at / across} * kTileRows;
    first_column = int64_t{at % across} * kTileColumns;
  }
};

// Calls part(row, column, numbers) for each pack of the tile that this thread has: T rounded to R, as float. All
// threads make the same number of calls; packs outside of the matrix are zeros.
template <typename T, typename R, class Part>
__device__ inline void for_packs(const T* from, const Tile& tile, const Part& part) {
  constexpr int N = 16 / sizeof(T), kPacks = kTileColumns / N, kEach = kTileRows * kPacks / kTileThreads;
  Pack<T, N> in[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int64_t row = tile.first_row + place / kPacks, column = tile.first_column + place % kPacks * N;
    in[i] = Pack<T, N>{};
    if (row < tile.rows && column < tile.columns) in[i] = load_pack<T, N>(from + row * tile.columns + column);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kTileThreads;
    float number[N];
#pragma unroll
    for (int k = 0; k < N; ++k) number[k] = to_float(from_float<R>(to_float(in[i].value[k])));
    part(place / kPacks, place % kPacks * N, number);
  }
}

// Sizes are compared as the bits of floats, for which not-a-number is above infinity.
template <typename T, typename R>
__global__ void __launch_bounds__(kTileThreads) row_maxima_kernel(const __grid_constant__ Fp8WeightRows p) {
  constexpr int N = 16 / sizeof(T), kPacks = kTileColumns / N;
  static_assert(kTileThreads % kPacks == 0);  // so that a thread has the same columns of each of its rows
  __shared__ uint32_t of_row[kTileRows], of_column[kTileColumns];
  const Tile tile(p);
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_earlier();
  if (thread < kTileColumns) of_column[thread] = 0;
  __syncthreads();
  uint32_t columns[N] = {}, largest = 0;
  for_packs<T, R>(static_cast<const T*>(p.from[tile.matrix]), tile, [&](int row, int, const float(&number)[N]) {
    uint32_t size = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t bits = __float_as_uint(number[k]) & 0x7fffffffu;
      columns[k] = max(columns[k], bits);
      size = max(size, bits);
    }
    // kPacks neighbouring threads have the row.
#pragma unroll
    for (int offset = kPacks / 2; offset > 0; offset /= 2) size = max(size, __shfl_xor_sync(0xffffffffu, size, offset));
    if (thread % kPacks == 0) of_row[row] = size;
    largest = max(largest, size);
  });
#pragma unroll
  for (int k = 0; k < N; ++k) atomicMax(&of_column[thread % kPacks * N + k], columns[k]);
  __syncthreads();
  auto* const maxima = reinterpret_cast<uint32_t*>(p.maxima[tile.matrix]);
  if (thread < kTileRows && tile.first_row + thread < tile.rows) {
    atomicMax(maxima + tile.first_row + thread, of_row[thread]);
  }
  if (thread < kTileColumns && tile.first_column + thread < tile.columns) {
    atomicMax(maxima + tile.rows + tile.first_column + thread, of_column[thread]);
  }
  raise_amax_by_block<kTileThreads / 32>(p.slots + int64_t{tile.matrix} * kSlotFloats, largest);
}

template <typename T, typename R>
__global__ void __launch_bounds__(kTileThreads) quantize_weight_rows_kernel(const __grid_constant__ Fp8WeightRows p) {
  constexpr int N = 16 / sizeof(T);
  __shared__ Fp8Tile across;
  __shared__ float of_row[kTileRows], of_column[kTileColumns];  // 1 / scale
  const Tile tile(p);
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_earlier();
  const float* const maxima = p.maxima[tile.matrix];
  if (thread < kTileRows && tile.first_row + thread < tile.rows) {
    const float scale = scale_for(maxima[tile.first_row + thread]);
    of_row[thread] = __fdiv_rn(1.0f, scale);
    if (tile.first_column == 0) p.scales[tile.matrix][tile.first_row + thread] = scale;
  }
  if (thread < kTileColumns && tile.first_column + thread < tile.columns) {
    const float scale = scale_for(maxima[tile.rows + tile.first_column + thread]);
    of_column[thread] = __fdiv_rn(1.0f, scale);
    if (tile.first_row == 0) p.transposed_scales[tile.matrix][tile.first_column + thread] = scale;
  }
  __syncthreads();
  auto* const values = static_cast<uint8_t*>(p.values[tile.matrix]);
  for_packs<T, R>(static_cast<const T*>(p.from[tile.matrix]), tile, [&](int row, int column, const float(&number)[N]) {
    if (tile.first_row + row >= tile.rows || tile.first_column + column >= tile.columns) return;
    Pack<uint8_t, N> by_row, by_column;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const uint32_t pair = e4m3_pair(__fmul_rn(number[k], of_row[row]), __fmul_rn(number[k + 1], of_row[row]));
      const uint32_t other =
          e4m3_pair(__fmul_rn(number[k], of_column[column + k]), __fmul_rn(number[k + 1], of_column[column + k + 1]));
      by_row.value[k] = static_cast<uint8_t>(pair);
      by_row.value[k + 1] = static_cast<uint8_t>(pair >> 8);
      by_column.value[k] = static_cast<uint8_t>(other);
      by_column.value[k + 1] = static_cast<uint8_t>(other >> 8);
    }
    store_pack(values + (tile.first_row + row) * tile.columns + tile.first_column + column, by_row);
    across.keep(row, column, by_column);
  });
  __syncthreads();
  across.store_transposed<true>(static_cast<uint8_t*>(p.transposed[tile.matrix]), tile.first_row, tile.first_column,
                                tile.rows, tile.columns);
}

template <typename T, typename R>
cudaError_t start(const Fp8WeightRows& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(p.first_block[p.count]);
  const cudaError_t error = start_early(&row_maxima_kernel<T, R>, blocks, kTileThreads, 0, stream, p);
  if (error != cudaSuccess) return error;
  return start_early(&quantize_weight_rows_kernel<T, R>, blocks, kTileThreads, 0, stream, p);
}

}  // namespace

void Fp8WeightRows::add(int64_t height, int64_t width) {
  if (count == 0) first_block[0] = 0;
  rows[count] = static_cast<int32_t>(height);
  columns[count] = static_cast<int32_t>(width);
  const int64_t tiles = (height + kTileRows - 1) / kTileRows * ((width + kTileColumns - 1) / kTileColumns);
  first_block[count + 1] = first_block[count] + static_cast<int32_t>(tiles);
  ++count;
}

cudaError_t launch(const Fp8WeightRows& params, cudaStream_t stream) {
  if (params.count == 0 || params.first_block[params.count] == 0) return cudaSuccess;
  return by_element(params.rounded, [&](auto to) {
    using R = TypeIn<decltype(to)>;
    return params.element == params.rounded ? start<R, R>(params, stream) : start<float, R>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
