// The sum of a tile of 16 rows and 32 columns begins as the tile itself. Column 8 p + 2 j + e of the 32 is column
// 2 p + e of the j-th product, so that a lane has eight neighbouring ones of a row: 16 bytes.
#include <algorithm>
#include <type_traits>

#include "ops/adapters/cuda/lora.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = kLoraColumns / kLoraStrip;
constexpr int kThreads = kWarps * 32;
constexpr int kTileRows = 16;
constexpr int kProducts = kLoraStrip / 8;  // of 8 columns
constexpr int kAtOnce = 2;                 // tiles whose elements are on their way together

template <typename T>
__device__ inline float2 unpacked(uint32_t pair) {
  T two[2];
  memcpy(two, &pair, sizeof pair);
  return {to_float(two[0]), to_float(two[1])};
}

template <typename T>
__device__ inline uint32_t packed(float low, float high) {
  const T two[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t pair;
  memcpy(&pair, two, sizeof pair);
  return pair;
}

// Of each product the factor b (16 x 8) for every 16 summands; a lane has summands 4 part .. 4 part + 3 of them.
template <typename T, int kSteps, bool kUpright>
__device__ inline void load_b(uint2 (&b)[kSteps][kProducts], const LowRankGemm& p, const T* from, int column, int group,
                              int part) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int summand = 16 * step + 4 * part;
    if constexpr (kUpright) {
      uint4 row[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row[i] = summand < p.rank
                     ? *reinterpret_cast<const uint4*>(from + int64_t{summand + i} * p.width + column + group / 2 * 8)
                     : uint4{};
      }
      const unsigned which = group % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        b[step][j] = {__byte_perm(word(row[0], j), word(row[1], j), which),
                      __byte_perm(word(row[2], j), word(row[3], j), which)};
      }
    } else {
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const int row = column + group / 2 * 8 + 2 * j + group % 2;
        b[step][j] =
            summand < p.rank ? *reinterpret_cast<const uint2*>(from + int64_t{row} * p.rank + summand) : uint2{};
      }
    }
  }
}

template <typename T, int kSteps, bool kUpright>
__global__ void __launch_bounds__(kThreads, kSteps <= 2 ? 2 : 1) low_rank_gemm(LowRankGemm p, int tiles) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, part = lane % 4;
  const int column = static_cast<int>(blockIdx.x) * kLoraColumns + static_cast<int>(threadIdx.x) / 32 * kLoraStrip;
  int slice = 0;
  while (slice < p.slices && (column < p.slice[slice].out || column >= p.slice[slice].out + p.slice[slice].columns)) {
    ++slice;
  }
  wait_for_earlier();
  if (slice == p.slices) return;
  uint2 b[kSteps][kProducts];
  const int first = kUpright ? column : p.slice[slice].first + column - p.slice[slice].out;
  load_b<T, kSteps, kUpright>(b, p, static_cast<const T*>(p.b), first, group, part);

  const int pitch = p.slices * p.rank;
  const T* a = static_cast<const T*>(p.a) + slice * p.rank;
  T* out = static_cast<T*>(p.out) + column + part * 8;
  const int64_t first_row = int64_t{blockIdx.y} * tiles * kTileRows + group;
  for (int tile = 0; tile < tiles; tile += kAtOnce) {
    uint4 sums[kAtOnce][2];
    uint2 factors[kAtOnce][2][kSteps];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + (tile + t) * kTileRows + half * 8;
        const bool is_there = row < p.rows;
        sums[t][half] = is_there ? *reinterpret_cast<const uint4*>(out + row * p.width) : uint4{};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int summand = 16 * step + 4 * part;
          factors[t][half][step] =
              is_there && summand < p.rank ? *reinterpret_cast<const uint2*>(a + row * pitch + summand) : uint2{};
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      uint32_t result[2][kProducts];
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const float2 low = unpacked<T>(word(sums[t][0], j)), high = unpacked<T>(word(sums[t][1], j));
        float sum[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const uint2 upper = factors[t][0][step], lower = factors[t][1][step];
          multiply<T>(sum, upper.x, lower.x, upper.y, lower.y, b[step][j].x, b[step][j].y);
        }
        result[0][j] = packed<T>(sum[0], sum[1]);
        result[1][j] = packed<T>(sum[2], sum[3]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + (tile + t) * kTileRows + half * 8;
        if (row < p.rows) {
          *reinterpret_cast<uint4*>(out + row * p.width) = {result[half][0], result[half][1], result[half][2],
                                                            result[half][3]};
        }
      }
    }
  }
}

// Enough blocks for every multiprocessor to have two or more.
constexpr int64_t kWantedBlocks = 400;

template <typename T, int kSteps, bool kUpright>
cudaError_t start(const LowRankGemm& p, cudaStream_t stream) {
  const int64_t strips = (p.width + kLoraColumns - 1) / kLoraColumns;
  int tiles = 8;
  const auto blocks = [&] { return (p.rows + tiles * kTileRows - 1) / (tiles * kTileRows); };
  while (tiles > kAtOnce && strips * blocks() < kWantedBlocks) tiles /= 2;
  while (blocks() > 65535) tiles *= 2;
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(blocks()));
  return start_early(&low_rank_gemm<T, kSteps, kUpright>, grid, kThreads, 0, stream, p, tiles);
}

template <typename T, bool kUpright>
cudaError_t start(const LowRankGemm& p, cudaStream_t stream) {
  if (p.rank <= 16) return start<T, 1, kUpright>(p, stream);
  if (p.rank <= 32) return start<T, 2, kUpright>(p, stream);
  if (p.rank <= 48) return start<T, 3, kUpright>(p, stream);
  return start<T, 4, kUpright>(p, stream);
}

}  // namespace

bool fits(const LowRankGemm& p) {
  if (p.element == Element::f32 || p.rows < 1 || p.rank < 4 || p.rank % 4 != 0 || p.rank > kMostLoraRank) return false;
  if (p.width % kLoraStrip != 0 || p.slices < 1 || p.slices > kMostLoraSlices || (p.upright && p.slices != 1)) {
    return false;
  }
  return std::all_of(p.slice, p.slice + p.slices,
                     [](const LoraColumns& s) { return s.out % kLoraStrip == 0 && s.columns % kLoraStrip == 0; });
}

cudaError_t launch(const LowRankGemm& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return p.upright ? start<T, true>(p, stream) : start<T, false>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
