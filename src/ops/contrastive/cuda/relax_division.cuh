#pragma once
// How geometric_relax divides rows and slots among blocks and warps, and what a block keeps in shared memory.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>

namespace hrm::ops::cuda {

constexpr int kTile = 16;  // rows of a tile, slots of a tile, classes of a tile
constexpr int kMostParts = 8;
// Fewer warps have more registers each. A free phase gains by them; nudged phases have twice the rows to divide.
__host__ __device__ constexpr int most_warps(bool nudged) {
  return nudged ? 12 : 8;
}

struct Division {
  int row_tiles = 0;   // of a cluster, each the work of slot_warps warps in every block
  int slot_warps = 0;  // warps that share a tile's slots in a block, at most kMostParts
  int cluster = 0;     // blocks that share the slots, at most kMostParts
  int slots = 0;       // of a block at most, a multiple of kTile * slot_warps
  int classes = 0;     // of a block at most, a multiple of kTile

  __host__ __device__ int warps() const { return row_tiles * slot_warps; }
  __host__ __device__ int rows() const { return row_tiles * kTile; }
  __host__ __device__ int parts() const { return cluster * slot_warps; }
  __host__ __device__ int own_rows() const { return rows() / cluster; }
};

// What a part of the slots adds to a row, by float32 numbers: maximum, sum of weights and sum of e; sum of e Kt; sum of
// w V; of the readout maximum and sum; sum of p W. Groups begin at multiples of 4.
template <int N, int D>
struct Columns {
  static constexpr int kHead = 0, kPull = 4, kMix = kPull + N, kReadout = kMix + D, kReadoutMix = kReadout + 4;
  // A free phase has no readout.
  static constexpr int kFree = kReadout, kNudged = kReadoutMix + D;
};

// Rows of W numbers, each as two float16 numbers: W high parts, then what they leave out. Rows are an odd multiple of
// 16 bytes apart, so that the 8 rows that a warp loads at once meet different banks.
template <int W>
struct SplitRows {
  static constexpr int kStride = 2 * W + 8;
};

template <int N, int D>
struct Shared {
  static constexpr int kKeyStride = SplitRows<N>::kStride, kValueStride = D + 8;  // halves

  __host__ __device__ Shared(char* base, const Division& division, bool nudged) : at(base) {
    const size_t slots = division.slots, classes = division.classes, rows = division.rows();
    const size_t own = division.own_rows(), columns = nudged ? Columns<N, D>::kNudged : Columns<N, D>::kFree;
    keys = take<__half>(slots * kKeyStride);
    values = take<__half>(slots * kValueStride);
    readout = take<__half>(classes * kValueStride);
    outputs = take<__half>(rows * SplitRows<D>::kStride);
    charts = take<__half>(rows * SplitRows<N>::kStride);
    squares = take<float>(rows);
    key_norms = take<float>(slots);
    resilience = take<float>(slots);
    bias = take<float>(classes);
    of_warps = take<float>(division.slot_warps > 1 ? rows * division.slot_warps * columns : 0);
    of_blocks = take<float>(own * division.cluster * columns);
    metric = take<float>(N * N);
    state = take<float>(own * (N + D));
    drive = take<float>(own * N);
    target = take<float>(own * D);
    sign = take<float>(own);
    speed = take<float>(own);
    residual = take<int>(own);
  }

  template <typename T>
  __host__ __device__ T* take(size_t count) {
    T* const result = reinterpret_cast<T*>(at);
    at += (count * sizeof(T) + 15) / 16 * 16;
    return result;
  }

  char* at;
  // outputs, charts: o and x of all rows of the cluster, and squares: |x|^2. state: x less its drive and o of the
  // block's own rows, N + D numbers a row. of_warps: what each warp of this block adds to a row of the cluster,
  // of_blocks: what each block adds to an own row. residual: the bits of a float32 number. key_norms: with cost_eps
  // added.
  __half *keys, *values, *readout, *outputs, *charts;
  float *squares, *key_norms, *resilience, *bias, *of_warps, *of_blocks, *metric, *state, *drive, *target, *sign,
      *speed;
  int* residual;
};

}  // namespace hrm::ops::cuda
