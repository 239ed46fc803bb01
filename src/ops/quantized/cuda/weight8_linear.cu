// Products of up to 32 rows with an 8-bit weight, as decoding has them. Reading the weight once takes the time: it is
// read as bytes, 16 at a time, and widened in registers (weight8_widen.cuh). The tensor cores multiply; sums are
// float32. The scale of an output multiplies its sum.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/linear/cuda/skinny_gemm.cuh"
#include "ops/quantized/cuda/weight8.h"
#include "ops/quantized/cuda/weight8_widen.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each has every eighth part of 64 of the summands
constexpr int kThreads = kWarps * 32;
constexpr int kLoad = 16;                  // weights of a load
constexpr int kStep = kWarps * 4 * kLoad;  // summands from one part of a warp to its next
constexpr int kUnroll = 4;                 // parts whose weights are loaded at once
constexpr int kTileRows = 8;               // rows of x in a tile
constexpr int kPitch = 20;                 // floats from one row of a tile to the next: no two in one bank
constexpr int kTileFloats = kTileRows * kPitch;
constexpr int64_t kNarrowColumns = 1536;  // up to here, tiles of 8 columns: more blocks

// A block has 16 columns (8 if narrow) of all rows. A lane has weights of column `group` and group + 8, and x of row
// `group` of each tile. Its 16 weights of a part are what four products of 16 summands take from it; which of the
// summands stands where is free, as both factors agree.
template <typename T, Weight8Format kFormat, int kRowTiles, bool kNarrow>
__global__ void __launch_bounds__(kThreads, kRowTiles <= 2 ? 3 : 2) weight8_linear_kernel(const Weight8Linear p) {
  constexpr int kHalves = kNarrow ? 1 : 2, kColumns = 8 * kHalves;
  __shared__ float sums[kWarps * kRowTiles * kTileFloats];
  const int width = static_cast<int>(p.width), inner = static_cast<int>(p.inner), rows = static_cast<int>(p.rows);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int begin = (warp * 4 + part) * kLoad;  // of this thread's summands
  const uint8_t* from[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int column = min(first_column + half * 8 + group, width - 1);
    from[half] = p.values + int64_t{column} * inner + begin;
  }
  if (threadIdx.x == 0) {
    const int64_t columns = min(kColumns, width - first_column);
    ask_for(p.values + int64_t{first_column} * inner, columns * inner);
  }
  int left = inner - begin;
  uint4 w[kUnroll][kHalves];
  const auto load = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        w[u][half] = left > kStep * u ? load_once(from[half] + kStep * u) : uint4{};
      }
    }
  };
  load();
  wait_for_earlier();

  const T* x = static_cast<const T*>(p.x) + begin;
  float sum[kRowTiles][4] = {};
  // All lanes of a warp go on together: a part beyond the end is zeros in both factors.
  for (int first = warp * 4 * kLoad; first < inner; first += kStep * kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + kStep * u >= inner) break;
      uint4 low[kRowTiles], high[kRowTiles];
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const T* row = x + int64_t{min(n * kTileRows + group, rows - 1)} * inner + kStep * u;
        low[n] = left > kStep * u ? load_here(row) : uint4{};
        high[n] = left > kStep * u ? load_here(row + 8) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 a = widen<T, kFormat>(word(w[u][0], i));
        const uint2 b = kNarrow ? uint2{} : widen<T, kFormat>(word(w[u][kHalves - 1], i));
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const uint4& v = i < 2 ? low[n] : high[n];
          multiply<T>(sum[n], a.x, b.x, a.y, b.y, word(v, 2 * (i % 2)), word(v, 2 * (i % 2) + 1));
        }
      }
    }
    if (first + kStep * kUnroll >= inner) break;
    left -= kStep * kUnroll;
    x += kStep * kUnroll;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) from[half] += kStep * kUnroll;
    load();
  }

#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    float* to = sums + (warp * kRowTiles + n) * kTileFloats + 2 * part * kPitch + group;
    to[0] = sum[n][0];
    to[kPitch] = sum[n][1];
    to[8] = sum[n][2];
    to[kPitch + 8] = sum[n][3];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * kRowTiles * kTileRows; i += kThreads) {
    const int within = i % kColumns, row = i / kColumns, column = first_column + within;
    if (row >= rows || column >= width) continue;
    const float* tile = sums + row / kTileRows * kTileFloats + row % kTileRows * kPitch + within;
    float result = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) result += tile[other * kRowTiles * kTileFloats];
    result = __fmul_rn(result, p.scales[column]);
    const int64_t at = int64_t{row} * width + column;
    if (p.residual != nullptr) result += to_float(static_cast<const T*>(p.residual)[at]);
    static_cast<T*>(p.out)[at] = from_float<T>(result);
  }
}

template <typename T, Weight8Format kFormat, int kRowTiles>
cudaError_t start(const Weight8Linear& p, cudaStream_t stream) {
  const bool narrow = p.width <= kNarrowColumns;
  const auto blocks = static_cast<unsigned>((p.width + (narrow ? 7 : 15)) / (narrow ? 8 : 16));
  const auto kernel = narrow ? &weight8_linear_kernel<T, kFormat, kRowTiles, true>
                             : &weight8_linear_kernel<T, kFormat, kRowTiles, false>;
  return start_early(kernel, blocks, kThreads, 0, stream, p);
}

template <typename T, Weight8Format kFormat>
cudaError_t start_rows(const Weight8Linear& p, cudaStream_t stream) {
  if (p.rows <= 8) return start<T, kFormat, 1>(p, stream);
  return p.rows <= 16 ? start<T, kFormat, 2>(p, stream) : start<T, kFormat, 4>(p, stream);
}

}  // namespace

cudaError_t launch(const Weight8Linear& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return p.format == Weight8Format::e4m3 ? start_rows<T, Weight8Format::e4m3>(p, stream)
                                           : start_rows<T, Weight8Format::int8>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
