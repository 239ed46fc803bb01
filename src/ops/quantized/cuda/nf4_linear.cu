// Products of up to 32 rows with an NF4 weight, as decoding has them, like weight8_linear.cu: codes are read 32 at a
// time and looked up in shared memory. A level times its block's magnitude is rounded to x's type as dequantising does,
// so the products are those of the dequantised weight. The tensor cores multiply; sums are float32.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/linear/cuda/skinny_gemm.cuh"
#include "ops/quantized/cuda/nf4.h"
#include "ops/quantized/nf4_levels.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each has every eighth part of 128 of the summands
constexpr int kThreads = kWarps * 32;
constexpr int kLoad = 32;                  // codes of a load, half of those with one magnitude
constexpr int kStep = kWarps * 4 * kLoad;  // summands from one part of a warp to its next
// Parts whose codes are loaded at once; with more rows their registers are for x.
template <int kRowTiles>
constexpr int kPartsAtOnce = kRowTiles == 1 ? 2 : 1;
constexpr int kTileRows = 8;  // rows of x in a tile
constexpr int kPitch = 20;    // floats from one row of a tile to the next: no two in one bank
constexpr int kTileFloats = kTileRows * kPitch;
constexpr int64_t kNarrowColumns = 1536;  // up to here, tiles of 8 columns: more blocks

__constant__ Nf4Levels<kNf4Levels> c_levels = nf4_levels();
__constant__ Nf4Levels<kNf4AbsmaxLevels> c_absmax_levels = nf4_absmax_levels();

// 32 neighbouring codes of a column, and their magnitude as it lies in memory: itself, or a scale and a code.
struct Codes {
  uint4 bytes;
  float scale;
  uint8_t code;
};

struct Tables {
  float level[kNf4Levels];  // in banks of their own
  float magnitude[kNf4AbsmaxLevels];
};

template <typename T>
__device__ inline uint32_t pair_of(float low, float high) {
  const Pack<T, 2> pair{from_float<T>(low), from_float<T>(high)};
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Numbers 0 and 1 of the four whose codes are the lower two bytes, and 2 and 3. The upper half of a byte comes first.
template <typename T>
__device__ inline uint2 widen_codes(uint32_t bytes, const float* level, float absmax) {
  const auto number = [&](int shift) { return __fmul_rn(level[(bytes >> shift) & 15u], absmax); };
  return {pair_of<T>(number(4), number(0)), pair_of<T>(number(12), number(8))};
}

template <typename T, int kRowTiles, bool kNarrow>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 ? 3 : 2) nf4_linear_kernel(const Nf4Linear p) {
  constexpr int kHalves = kNarrow ? 1 : 2, kColumns = 8 * kHalves, kUnroll = kPartsAtOnce<kRowTiles>;
  __shared__ float sums[kWarps * kRowTiles * kTileFloats];
  __shared__ Tables tables;
  const int width = static_cast<int>(p.width), inner = static_cast<int>(p.inner), rows = static_cast<int>(p.rows);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int begin = (warp * 4 + part) * kLoad;  // of this thread's summands
  int left = inner - begin;
  int64_t from[kHalves];  // code of its columns
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    from[half] = int64_t{min(first_column + half * 8 + group, width - 1)} * inner + begin;
  }
  Codes w[kUnroll][kHalves];
  const auto load = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        w[u][half] = {};
        if (left <= kStep * u) continue;
        const int64_t at = from[half] + kStep * u, block = at / kNf4Elements;
        w[u][half].bytes = load_once(p.codes + at / 2);
        if (p.absmax != nullptr) {
          w[u][half].scale = p.absmax[block];
        } else {
          w[u][half].scale = p.scales[block / kNf4Magnitudes];
          w[u][half].code = p.absmax_codes[block];
        }
      }
    }
  };
  load();
  static_assert(kNf4AbsmaxLevels == kThreads);
  tables.magnitude[threadIdx.x] = c_absmax_levels.level[threadIdx.x];
  if (threadIdx.x < kNf4Levels) tables.level[threadIdx.x] = c_levels.level[threadIdx.x];
  const float offset = p.absmax != nullptr ? 0.0f : *p.offset;
  __syncthreads();
  wait_for_earlier();

  // Rounded twice, as nf4_dequantize_ does it.
  const auto absmax_of = [&](const Codes& c) {
    return p.absmax != nullptr ? c.scale : __fadd_rn(__fmul_rn(tables.magnitude[c.code], c.scale), offset);
  };
  const T* x = static_cast<const T*>(p.x) + begin;
  float sum[kRowTiles][4] = {};
  // All lanes of a warp go on together: beyond the end x is zeros.
  for (int first = warp * 4 * kLoad; first < inner; first += kStep * kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + kStep * u >= inner) break;
      float absmax[kHalves];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) absmax[half] = left > kStep * u ? absmax_of(w[u][half]) : 0.0f;
#pragma unroll
      for (int piece = 0; piece < 2; ++piece) {
        uint4 low[kRowTiles], high[kRowTiles];
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const T* row = x + int64_t{min(n * kTileRows + group, rows - 1)} * inner + kStep * u + 16 * piece;
          low[n] = left > kStep * u ? load_here(row) : uint4{};
          high[n] = left > kStep * u ? load_here(row + 8) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto four = [&](int half) {
            const uint32_t bytes = word(w[u][half].bytes, 2 * piece + i / 2) >> (16 * (i % 2));
            return widen_codes<T>(bytes, tables.level, absmax[half]);
          };
          const uint2 a = four(0), b = kNarrow ? uint2{} : four(kHalves - 1);
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) {
            const uint4& v = i < 2 ? low[n] : high[n];
            multiply<T>(sum[n], a.x, b.x, a.y, b.y, word(v, 2 * (i % 2)), word(v, 2 * (i % 2) + 1));
          }
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
    const int64_t at = int64_t{row} * width + column;
    if (p.residual != nullptr) result += to_float(static_cast<const T*>(p.residual)[at]);
    static_cast<T*>(p.out)[at] = from_float<T>(result);
  }
}

template <typename T, int kRowTiles>
cudaError_t start(const Nf4Linear& p, cudaStream_t stream) {
  const bool narrow = p.width <= kNarrowColumns;
  const auto blocks = static_cast<unsigned>((p.width + (narrow ? 7 : 15)) / (narrow ? 8 : 16));
  const auto kernel = narrow ? &nf4_linear_kernel<T, kRowTiles, true> : &nf4_linear_kernel<T, kRowTiles, false>;
  return start_early(kernel, blocks, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const Nf4Linear& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (p.rows <= 8) return start<T, 1>(p, stream);
    return p.rows <= 16 ? start<T, 2>(p, stream) : start<T, 4>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
