#pragma once
// An adapter's part of a tile of a skinny product (hrm/ops/lora.h), by tensor cores of 16-bit elements.

#include "ops/cuda/matrix_copies.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/linear/cuda/skinny_gemm.h"

namespace hrm::ops::cuda::sm90 {

// u of that many slices is near: as many as a tile of a weight has as a rule.
constexpr int kNearSlices = 2;

// An adapter's factors of a block's tile. Near ones are copied to shared memory while the product is under way: B of
// each column, or zeros, and u of the first slices that the tile has columns of.
template <typename T, class Block>
struct TilesAdapter {
  const SkinnyAdapter& a;
  int thread;  // of Block::kTileThreads, those that multiply the tile
  int first_column, width, rows;
  T* near;  // null: what is needed is read where it is
  int x_rows;

  // Of the product, of a column of the tile.
  __device__ int column_of(int of) const {
    return Block::kGated && of >= Block::kColumns ? width + first_column + of - Block::kColumns : first_column + of;
  }
  __device__ bool has(int slice, int column) const {
    const SkinnyAdapterSlice& s = a.slice[slice];
    return column >= s.out && column < s.out + s.columns;
  }
  __device__ const T* row_of_b(int slice, int column) const {
    const SkinnyAdapterSlice& s = a.slice[slice];
    return static_cast<const T*>(a.B) + int64_t{s.first + column - s.out} * a.rank;
  }
  __device__ bool in_tile(int slice) const {
    const SkinnyAdapterSlice& s = a.slice[slice];
    const auto meets = [&](int first) { return first < s.out + s.columns && first + Block::kColumns > s.out; };
    return meets(first_column) || (Block::kGated && meets(width + first_column));
  }
  __device__ T* near_u(int slot) const { return near + (Block::kTile + slot * x_rows) * a.rank; }

  // By all threads of the tile; copies of 16 bytes.
  __device__ void ask_for_b() const {
    if (near == nullptr) return;
    const int runs = a.rank / 8;
#pragma unroll 1
    for (int i = thread; i < Block::kTile * runs; i += Block::kTileThreads) {
      const int of = i / runs, column = column_of(of);
      int slice = 0;
#pragma unroll 1
      while (slice < a.slices && !has(slice, column)) ++slice;
      const bool exists = slice < a.slices;
      const T* const from = exists ? row_of_b(slice, column) + i % runs * 8 : static_cast<const T*>(a.B);
      copy_async(shared_address(near + of * a.rank + i % runs * 8), from, exists);
    }
  }
  __device__ void ask_for_u() const {
    if (near == nullptr) return;
    const int runs = a.rank / 8;
#pragma unroll 1
    for (int slice = 0, slot = 0; slice < a.slices && slot < kNearSlices; ++slice) {
      if (!in_tile(slice)) continue;
#pragma unroll 1
      for (int i = thread; i < rows * runs; i += Block::kTileThreads) {
        const int row = i / runs, k = i % runs * 8;
        const T* const from = static_cast<const T*>(a.u) + (int64_t{row} * a.slices + slice) * a.rank + k;
        copy_async(shared_address(near_u(slot) + row * a.rank + k), from, true);
      }
      ++slot;
    }
  }

  // u B^T of a warp's 16 columns, `of` those of this thread, and all rows, as wgmma's sums are laid out. The four
  // threads of a row of a factor have four neighbouring summands each, in the same order on both sides.
  __device__ void sums(float (&sum)[Block::kRows / 8][4], const int (&of)[2]) const {
    const int lane = thread % 32, group = lane / 4, part = lane % 4;
#pragma unroll 1
    for (int slice = 0, slot = 0; slice < a.slices; ++slice) {
      if (!in_tile(slice)) continue;
      const bool u_near = near != nullptr && slot < kNearSlices;
      const T* const u = u_near ? near_u(slot) : static_cast<const T*>(a.u) + slice * a.rank;
      const int stride = u_near ? a.rank : a.slices * a.rank;
      ++slot;
      bool exists[2];
      const T* b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        exists[i] = has(slice, column_of(of[i]));
        b[i] = near != nullptr ? near + of[i] * a.rank : row_of_b(slice, column_of(of[i]));
      }
      if (!__any_sync(0xffffffffu, exists[0] || exists[1])) continue;
#pragma unroll 1
      for (int k = 4 * part; k - 4 * part < a.rank; k += 16) {
        const auto load = [&](const T* from, bool is_there) {
          return is_there && k < a.rank ? *reinterpret_cast<const uint2*>(from + k) : uint2{};
        };
        const uint2 low = load(b[0], exists[0]), high = load(b[1], exists[1]);
#pragma unroll
        for (int j = 0; j < Block::kRows / 8; ++j) {
          const int row = 8 * j + group;
          const uint2 factor = load(u + row * stride, row < rows);
          multiply<T>(sum[j], low.x, high.x, low.y, high.y, factor.x, factor.y);
        }
      }
    }
  }
};

}  // namespace hrm::ops::cuda::sm90
