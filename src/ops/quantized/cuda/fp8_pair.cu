#include "ops/quantized/cuda/fp8_pair.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_sizes.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64, kColumns = 128;  // of a block's tile
// Bytes between rows in shared memory. Neighbouring threads read 16 bytes of a column each, from 16 rows: of four row
// groups and eight columns, which lie in different banks but for pairs.
constexpr int kPitch = kColumns + 4;

// A block has a tile of 64 x 128. It reads 16 bytes a thread, writes the 8-bit values as they stand, and keeps them in
// shared memory. Then each thread collects 16 values of a column. Without `kWhole`, sizes or addresses are not
// multiples of 16, and elements are moved one by one.
template <typename T, bool kE5m2, bool kWhole>
__global__ void __launch_bounds__(kThreads) pair_kernel(const QuantizeFp8Pair p) {
  __shared__ __align__(16) uint8_t tile[kRows * kPitch];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{blockIdx.y} * kRows, first_column = int64_t{blockIdx.x} * kColumns;
  const auto* from = static_cast<const T*>(p.from);
  auto *values = static_cast<uint8_t*>(p.values), *transposed = static_cast<uint8_t*>(p.transposed);
  wait_for_earlier();
  const float scale = p.slot[0];
  Fp8Sizes<T> sizes;

  constexpr int N = kWhole ? 16 / sizeof(T) : 1;  // of a thread at a time
  constexpr int kPacks = kColumns / N;            // of a row
#pragma unroll(kWhole ? kRows* kPacks / kThreads : 4)
  for (int i = thread; i < kRows * kPacks; i += kThreads) {
    const int row = i / kPacks, column = i % kPacks * N;
    if (first_row + row >= p.rows || first_column + column >= p.columns) continue;
    const int64_t at = (first_row + row) * p.columns + first_column + column;
    const Pack<uint8_t, N> out = sizes.template quantize<kE5m2>(load_pack<T, N>(from + at), scale);
    if (values != nullptr) store_pack(values + at, out);
    if (transposed != nullptr) {
      if constexpr (N >= 4) {
#pragma unroll
        for (int k = 0; k < N; k += 4) {
          *reinterpret_cast<uint32_t*>(tile + row * kPitch + column + k) =
              out.value[k] | out.value[k + 1] << 8 | out.value[k + 2] << 16 | uint32_t{out.value[k + 3]} << 24;
        }
      } else {
        tile[row * kPitch + column] = out.value[0];
      }
    }
  }
  raise_amax_by_block<kThreads / 32>(p.slot, sizes.bits());
  if (transposed == nullptr) return;
  __syncthreads();

  constexpr int M = kWhole ? 16 : 1;  // rows of a thread at a time
  constexpr int kGroups = kRows / M;
#pragma unroll(kWhole ? kColumns* kGroups / kThreads : 4)
  for (int i = thread; i < kColumns * kGroups; i += kThreads) {
    const int column = i / kGroups, row = i % kGroups * M;
    if (first_row + row >= p.rows || first_column + column >= p.columns) continue;
    Pack<uint8_t, M> out;
#pragma unroll
    for (int k = 0; k < M; ++k) out.value[k] = tile[(row + k) * kPitch + column];
    store_pack(transposed + (first_column + column) * p.rows + first_row + row, out);
  }
}

template <typename T, bool kE5m2>
cudaError_t start(const QuantizeFp8Pair& p, cudaStream_t stream) {
  const int64_t across = (p.columns + kColumns - 1) / kColumns, down = (p.rows + kRows - 1) / kRows;
  if (across == 0 || down == 0) return cudaSuccess;
  if (across > INT32_MAX || down > 65535) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  const bool whole =
      p.rows % 16 == 0 && p.columns % 16 == 0 && aligned16(p.from) && aligned16(p.values) && aligned16(p.transposed);
  return whole ? start_early(&pair_kernel<T, kE5m2, true>, grid, kThreads, 0, stream, p)
               : start_early(&pair_kernel<T, kE5m2, false>, grid, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const QuantizeFp8Pair& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return params.e5m2 ? start<T, true>(params, stream) : start<T, false>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
