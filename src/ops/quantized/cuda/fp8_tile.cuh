#pragma once
// A tile of 8-bit values in shared memory, for kernels that write a matrix as it stands and transposed. No torch
// headers.

#include <cstdint>

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {

constexpr int kTileThreads = 256;
constexpr int kTileRows = 64, kTileColumns = 128;

struct Fp8Tile {
  // Bytes between rows. Neighbouring threads read 16 bytes of a column each, from 16 rows: of four row groups and eight
  // columns, which lie in different banks but for pairs.
  static constexpr int kPitch = kTileColumns + 4;
  __align__(16) uint8_t bytes[kTileRows * kPitch];

  template <int N>
  __device__ void keep(int row, int column, const Pack<uint8_t, N>& out) {
    uint8_t* const to = bytes + row * kPitch + column;
    if constexpr (N >= 4) {
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        *reinterpret_cast<uint32_t*>(to + k) =
            out.value[k] | out.value[k + 1] << 8 | out.value[k + 2] << 16 | uint32_t{out.value[k + 3]} << 24;
      }
    } else {
      to[0] = out.value[0];
    }
  }

  // Writes columns of the tile as rows of the matrix `to` (columns, rows), where the tile's first element is at
  // (first_column, first_row). With `kWhole`, rows and columns are multiples of 16 and `to` is aligned to that.
  template <bool kWhole, int kThreads = kTileThreads>
  __device__ void store_transposed(uint8_t* to, int64_t first_row, int64_t first_column, int64_t rows,
                                   int64_t columns) const {
    constexpr int M = kWhole ? 16 : 1;  // rows of a thread at a time
    constexpr int kGroups = kTileRows / M;
#pragma unroll(kWhole ? kTileColumns* kGroups / kThreads : 4)
    for (int i = static_cast<int>(threadIdx.x); i < kTileColumns * kGroups; i += kThreads) {
      const int column = i / kGroups, row = i % kGroups * M;
      if (first_row + row >= rows || first_column + column >= columns) continue;
      Pack<uint8_t, M> out;
#pragma unroll
      for (int k = 0; k < M; ++k) out.value[k] = bytes[(row + k) * kPitch + column];
      store_pack(to + (first_column + column) * rows + first_row + row, out);
    }
  }
};

}  // namespace hrm::ops::cuda
