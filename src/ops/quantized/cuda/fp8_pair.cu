#include "ops/quantized/cuda/fp8_pair.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_sizes.cuh"
#include "ops/quantized/cuda/fp8_tile.cuh"

namespace hrm::ops::cuda {
namespace {

// A block has a tile of 64 x 128. It reads 16 bytes a thread, writes the 8-bit values as they stand, and keeps them in
// shared memory. Then each thread collects 16 values of a column. Without `kWhole`, sizes or addresses are not
// multiples of 16, and elements are moved one by one.
template <typename T, bool kE5m2, bool kWhole>
__global__ void __launch_bounds__(kTileThreads) pair_kernel(const QuantizeFp8Pair p) {
  __shared__ Fp8Tile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, first_column = int64_t{blockIdx.x} * kTileColumns;
  const auto* from = static_cast<const T*>(p.from);
  auto *values = static_cast<uint8_t*>(p.values), *transposed = static_cast<uint8_t*>(p.transposed);
  wait_for_earlier();
  const float scale = p.slot[0];
  Fp8Sizes<T> sizes;

  constexpr int N = kWhole ? 16 / sizeof(T) : 1;  // of a thread at a time
  constexpr int kPacks = kTileColumns / N;        // of a row
#pragma unroll(kWhole ? kTileRows* kPacks / kTileThreads : 4)
  for (int i = thread; i < kTileRows * kPacks; i += kTileThreads) {
    const int row = i / kPacks, column = i % kPacks * N;
    if (first_row + row >= p.rows || first_column + column >= p.columns) continue;
    const int64_t at = (first_row + row) * p.columns + first_column + column;
    const Pack<uint8_t, N> out = sizes.template quantize<kE5m2>(load_pack<T, N>(from + at), scale);
    if (values != nullptr) store_pack(values + at, out);
    if (transposed != nullptr) tile.keep(row, column, out);
  }
  record_by_block<kTileThreads / 32>(p.slot, sizes.bits(), sizes.clamped, p.rows);
  if (transposed == nullptr) return;
  __syncthreads();
  tile.store_transposed<kWhole>(transposed, first_row, first_column, p.rows, p.columns);
}

template <typename T, bool kE5m2>
cudaError_t start(const QuantizeFp8Pair& p, cudaStream_t stream) {
  const int64_t across = (p.columns + kTileColumns - 1) / kTileColumns, down = (p.rows + kTileRows - 1) / kTileRows;
  if (across == 0 || down == 0) return cudaSuccess;
  if (across > INT32_MAX || down > 65535) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  const bool whole =
      p.rows % 16 == 0 && p.columns % 16 == 0 && aligned16(p.from) && aligned16(p.values) && aligned16(p.transposed);
  return whole ? start_early(&pair_kernel<T, kE5m2, true>, grid, kTileThreads, 0, stream, p)
               : start_early(&pair_kernel<T, kE5m2, false>, grid, kTileThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const QuantizeFp8Pair& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return params.e5m2 ? start<T, true>(params, stream) : start<T, false>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
