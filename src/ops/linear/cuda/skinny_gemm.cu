#include "ops/linear/cuda/skinny_gemm.h"

#include <algorithm>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/linear/cuda/skinny_gemm.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each has every eighth part of 32 of the sums
constexpr int kThreads = kWarps * 32;
constexpr int N = 8;                // elements of 16 bytes
constexpr int kStep = kWarps * 32;  // summands from one part of a warp to its next
constexpr int kTileRows = 8;        // of a tile
constexpr int kPitch = 20;          // floats from one row of a tile to the next in shared memory: no two in one bank
constexpr int kTileFloats = kTileRows * kPitch;
constexpr int kPad = 32;  // elements between two rows of x in shared memory, for the same
constexpr int kHeld = 4;  // packs of a row that a lane keeps while it is normalised
constexpr int64_t kNarrowColumns = 1536;

template <typename T>
using Eight = Pack<T, N>;

template <typename T>
__device__ inline float rounded(float value) {
  return to_float(from_float<T>(value));
}

// The rows of x into shared memory, normalised by a warp each.
template <typename T>
__device__ inline void normalise(const SkinnyGemm& p, T* to) {
  const int inner = static_cast<int>(p.inner), packs = inner / N, pitch = inner + kPad;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = warp; row < static_cast<int>(p.rows); row += kWarps) {
    const T* from = static_cast<const T*>(p.x) + int64_t{row} * inner;
    Eight<T> held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (lane + 32 * i < packs) held[i] = load_pack<T, N>(from + (lane + 32 * i) * N);
    }
    float squares = 0;
    const auto add = [&](const Eight<T>& pack) {
#pragma unroll
      for (int n = 0; n < N; ++n) squares += to_float(pack.value[n]) * to_float(pack.value[n]);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (lane + 32 * i < packs) add(held[i]);
    }
    for (int pack = lane + 32 * kHeld; pack < packs; pack += 32) add(load_pack<T, N>(from + pack * N));
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(inner) + p.eps);
    const auto write = [&](Eight<T> values, int pack) {
      const float4 low = *reinterpret_cast<const float4*>(p.norm + pack * N);
      const float4 high = *reinterpret_cast<const float4*>(p.norm + pack * N + 4);
      const float factor[N] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int n = 0; n < N; ++n) values.value[n] = from_float<T>(to_float(values.value[n]) * rstd * factor[n]);
      store_pack<T, N>(to + row * pitch + pack * N, values);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (lane + 32 * i < packs) write(held[i], lane + 32 * i);
    }
#pragma unroll 2
    for (int pack = lane + 32 * kHeld; pack < packs; pack += 32) write(load_pack<T, N>(from + pack * N), pack);
  }
}

// What the 16 columns of a tile are.
enum class Tile {
  plain,   // 16 columns
  narrow,  // 8, so that a narrow result has more blocks, and 8 that nothing is done with
  gated,   // 8 gates, and the 8 that they are for
};
template <Tile kTile>
constexpr int kTileColumns = kTile == Tile::plain ? 16 : 8;
// Parts of which a thread has x in registers at once, so that its loads do not wait for each other's products. Of many
// rows one part is enough of that.
template <int kRowTiles, int kUnroll>
constexpr int kPartsAhead = kRowTiles == 1   ? kUnroll
                            : kRowTiles == 2 ? 2
                                             : 1;
// Blocks of a multiprocessor that the registers shall suffice for.
constexpr int blocks_at_once(int row_tiles, int tiles, bool more) {
  return row_tiles >= 8 ? 1 : row_tiles * tiles == 1 && !more ? 3 : 2;
}

// A block has kTiles tiles of 16 columns of all rows, eight of them in a tile; the warps share the summands, of which
// each loads kUnroll parts at once, and their sums are added up in turn. A thread's 16 bytes of a row of weight or x
// are summands 8 t .. 8 t + 7 of 32, which are what two products of 16 take. kOnce: they have no more than kUnroll
// parts.
template <typename T, int kRowTiles, int kTiles, int kUnroll, Tile kTile, bool kNormed, bool kOnce>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kRowTiles, kTiles, kNormed || kUnroll > 4))
    skinny_gemm(SkinnyGemm p) {
  constexpr int kHalf = kTile == Tile::narrow ? 1 : 2;  // halves of a tile that are read
  constexpr int kBlockColumns = kTiles * kTileColumns<kTile>, kAhead = kPartsAhead<kRowTiles, kUnroll>;
  extern __shared__ float4 shared[];
  const int width = static_cast<int>(p.width), inner = static_cast<int>(p.inner), rows = static_cast<int>(p.rows);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const T* weight = static_cast<const T*>(p.weight);
  if (threadIdx.x < (kTile == Tile::gated ? 2 : 1)) {
    const int columns = min(kBlockColumns, width - first_column);
    ask_for(weight + (int64_t{threadIdx.x} * width + first_column) * inner, int64_t{columns} * inner * sizeof(T));
  }

  const int begin = warp * 32 + part * N;  // of this thread's summands
  const T* from[kTiles][kHalf];            // its columns of each tile
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < kHalf; ++half) {
      const bool is_up = kTile == Tile::gated && half == 1;
      const int column = first_column + tile * kTileColumns<kTile> + (is_up ? 0 : half * 8) + group;
      from[tile][half] = weight + ((is_up ? int64_t{width} : 0) + min(column, width - 1)) * inner + begin;
    }
  }
  int left = inner - begin;
  uint4 w[kUnroll][kTiles][kHalf];
  const auto load = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < kHalf; ++half) {
          w[u][tile][half] = left > kStep * u ? load_once(from[tile][half] + kStep * u) : uint4{};
        }
      }
    }
  };
  if (p.steady) {
    let_next_begin();
    load();
  }
  wait_for_earlier();
  if (!p.steady) load();

  const T* x = static_cast<const T*>(p.x);
  int pitch = inner;
  if constexpr (kNormed) {
    T* normed = reinterpret_cast<T*>(shared);
    normalise(p, normed);
    __syncthreads();
    x = normed;
    pitch = inner + kPad;
  }
  x += begin;
  float sum[kTiles][kRowTiles][4] = {};
  for (int first = warp * 32; first < inner; first += kStep * kUnroll) {
#pragma unroll
    for (int done = 0; done < kUnroll; done += kAhead) {
      uint4 values[kAhead][kRowTiles]{};
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const T* row = x + int64_t{min(n * kTileRows + group, rows - 1)} * pitch + kStep * done;
        if constexpr (!kNormed && kAhead > 1) asm volatile("" : "+l"(row));  // else it is computed for each load
#pragma unroll
        for (int u = 0; u < kAhead && done + u < kUnroll; ++u) {
          if (left <= kStep * (done + u)) continue;
          if constexpr (kNormed || kRowTiles == 4) {
            values[u][n] = *reinterpret_cast<const uint4*>(row + kStep * u);
          } else {
            values[u][n] = load_here(row + kStep * u);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kAhead && done + u < kUnroll; ++u) {
        if (first + kStep * (done + u) >= inner) break;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 low = w[done + u][tile][0], high = kHalf == 2 ? w[done + u][tile][kHalf - 1] : uint4{};
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) {
            const uint4 v = values[u][n];
            multiply<T>(sum[tile][n], low.x, high.x, low.y, high.y, v.x, v.y);
            multiply<T>(sum[tile][n], low.z, high.z, low.w, high.w, v.z, v.w);
          }
        }
      }
    }
    if (kOnce || first + kStep * kUnroll >= inner) break;
    left -= kStep * kUnroll;
    x += kStep * kUnroll;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < kHalf; ++half) from[tile][half] += kStep * kUnroll;
    }
    load();
  }

  if constexpr (kNormed) __syncthreads();  // x is no longer needed
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      float* to = sums + ((warp * kTiles + tile) * kRowTiles + n) * kTileFloats + 2 * part * kPitch + group;
      to[0] = sum[tile][n][0];
      to[kPitch] = sum[tile][n][1];
      to[8] = sum[tile][n][2];
      to[kPitch + 8] = sum[tile][n][3];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBlockColumns * kRowTiles * kTileRows; i += kThreads) {
    const int within = i % kBlockColumns, row = i / kBlockColumns, column = first_column + within;
    if (row >= rows || column >= width) continue;
    const float* tile = sums + (within / kTileColumns<kTile> * kRowTiles + row / kTileRows) * kTileFloats +
                        row % kTileRows * kPitch + within % kTileColumns<kTile>;
    const auto total = [&](int further) {
      float value = 0;
#pragma unroll
      for (int other = 0; other < kWarps; ++other) value += tile[other * kTiles * kRowTiles * kTileFloats + further];
      return value;
    };
    const int64_t at = int64_t{row} * width + column;
    float result = total(0);
    if constexpr (kTile == Tile::gated) {
      const float gate = rounded<T>(result), up = rounded<T>(total(8));
      result = rounded<T>(gate / (1.0f + __expf(-gate))) * up;
    }
    if (p.residual != nullptr) result += to_float(static_cast<const T*>(p.residual)[at]);
    static_cast<T*>(p.out)[at] = from_float<T>(result);
  }
}

template <typename T, int kRowTiles, int kTiles, int kUnroll, Tile kTile, bool kNormed, bool kOnce>
cudaError_t start(const SkinnyGemm& p, cudaStream_t stream) {
  constexpr int kBlockColumns = kTiles * kTileColumns<kTile>;
  const auto blocks = static_cast<unsigned>((p.width + kBlockColumns - 1) / kBlockColumns);
  const size_t sums = sizeof(float) * kWarps * kTiles * kRowTiles * kTileFloats;
  const size_t normed = kNormed ? sizeof(T) * static_cast<size_t>(p.rows * (p.inner + kPad)) : 0;
  const size_t bytes = std::max(sums, normed);
  const auto kernel = &skinny_gemm<T, kRowTiles, kTiles, kUnroll, kTile, kNormed, kOnce>;
  if (bytes > (48 << 10)) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return error;
  }
  return start_early(kernel, blocks, kThreads, bytes, stream, p);
}

// Where it can, a warp has all that it reads in registers at once. Wide tiles read x less often, narrow ones fill the
// multiprocessors.
template <typename T, bool kNormed>
cudaError_t start_few(const SkinnyGemm& p, cudaStream_t stream) {
  if (p.inner <= 3 * kStep) {
    if (p.gated) return start<T, 1, 1, 3, Tile::gated, kNormed, true>(p, stream);
    if (p.width <= kNarrowColumns) return start<T, 1, 1, 3, Tile::narrow, kNormed, true>(p, stream);
    return start<T, 1, 1, 3, Tile::plain, kNormed, true>(p, stream);
  }
  if (p.gated) return start<T, 1, 1, 4, Tile::gated, kNormed, false>(p, stream);
  if (p.width <= kNarrowColumns) return start<T, 1, 1, 8, Tile::narrow, kNormed, false>(p, stream);
  return start<T, 1, 1, 4, Tile::plain, kNormed, false>(p, stream);
}

template <typename T, int kRowTiles>
cudaError_t start_more(const SkinnyGemm& p, cudaStream_t stream) {
  constexpr int kShort = kRowTiles <= 4 ? 4 : 3, kLong = kRowTiles == 4 ? 2 : 3;
  if (p.gated) {
    return p.inner <= kShort * kStep ? start<T, kRowTiles, 2, kShort, Tile::gated, false, true>(p, stream)
                                     : start<T, kRowTiles, 2, kLong, Tile::gated, false, false>(p, stream);
  }
  if (p.width <= kNarrowColumns) return start<T, kRowTiles, 1, 4, Tile::narrow, false, false>(p, stream);
  return p.inner <= kShort * kStep ? start<T, kRowTiles, 1, kShort, Tile::plain, false, true>(p, stream)
                                   : start<T, kRowTiles, 1, kShort, Tile::plain, false, false>(p, stream);
}

}  // namespace

cudaError_t launch(const SkinnyGemm& params, cudaStream_t stream) {
  if (!fits(params)) return cudaErrorInvalidValue;
  return by_half_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (params.norm != nullptr) return start_few<T, true>(params, stream);
    if (params.rows <= 8) return start_few<T, false>(params, stream);
    if (params.rows <= 16) return start_more<T, 2>(params, stream);
    if (params.rows <= 32) return start_more<T, 4>(params, stream);
    return start_more<T, 8>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
