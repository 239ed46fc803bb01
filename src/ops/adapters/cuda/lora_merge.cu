// Merging adapters into weights. A warp has 32 columns of a span and keeps those of A in registers, as the factor b of
// its products, while it goes through the rows in tiles of 16. Column 8 p + 2 j + e of the 32 is column 2 p + e of the
// j-th product, so that a lane has eight neighbouring ones of a row: 16 bytes.
#include "ops/adapters/cuda/lora_merge.h"

#include "ops/cuda/block_items.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/mma.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStrip = 32;                 // columns of a warp
constexpr int kColumns = kThreads;         // of a block, 32 for each of its warps
constexpr int kProducts = kStrip / 8;      // of 8 columns
constexpr int kTileRows = 16, kTiles = 8;  // of a block
constexpr int kRows = kTileRows * kTiles;
constexpr int kPlainRows = 8;  // of a block without tensor cores

// Tiles whose elements are on their way together: what the registers allow.
template <int kSteps>
constexpr int kAtOnce = kSteps <= 2 ? 4 : 2;

// Four neighbouring elements of a row of B; zeros behind its end.
template <typename T>
__device__ inline uint2 load_four(const T* row, int from, int rank) {
  if (rank % 4 == 0) return from < rank ? *reinterpret_cast<const uint2*>(row + from) : uint2{};
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bits[i] = from + i < rank ? *reinterpret_cast<const uint16_t*>(row + from + i) : 0;
  }
  return {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
}

// Of each product the factor b (16 x 8) for every 16 ranks; a lane has ranks 4 part .. 4 part + 3 of them.
template <typename T, int kSteps>
__device__ inline void load_A(uint2 (&b)[kSteps][kProducts], const LoraMergeSpan& span, int rank, int strip, int group,
                              int part) {
  const int column = strip + group / 2 * 8;
  const T* from = static_cast<const T*>(span.A) + column;
  const unsigned which = group % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint4 row[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int summand = 16 * step + 4 * part + i;
      row[i] = summand < rank && column < span.width
                   ? *reinterpret_cast<const uint4*>(from + int64_t{summand} * span.width)
                   : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kProducts; ++j) {
      b[step][j] = {__byte_perm(word(row[0], j), word(row[1], j), which),
                    __byte_perm(word(row[2], j), word(row[3], j), which)};
    }
  }
}

// weight + scale * sum, two neighbouring elements.
template <typename T>
__device__ inline uint32_t merged_pair(uint32_t weight, float scale, float low, float high) {
  T two[2];
  memcpy(two, &weight, sizeof weight);
  two[0] = from_float<T>(fmaf(scale, low, to_float(two[0])));
  two[1] = from_float<T>(fmaf(scale, high, to_float(two[1])));
  memcpy(&weight, two, sizeof weight);
  return weight;
}

template <typename T, int kSteps>
__global__ void __launch_bounds__(kThreads, kSteps == 1   ? 5
                                            : kSteps <= 3 ? 4
                                                          : 3)
    lora_merge_products(const __grid_constant__ LoraMerge p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, part = lane % 4;
  const int i = item_of_block(p, p.spans, static_cast<int>(blockIdx.x));
  const LoraMergeSpan& span = p.span[i];
  const int block = static_cast<int>(blockIdx.x) - p.first_block[i], strips = (span.width + kColumns - 1) / kColumns;
  const int strip = block % strips * kColumns + static_cast<int>(threadIdx.x) / 32 * kStrip;
  const int first = block / strips * kRows, column = strip + 8 * part;
  if (strip >= span.width) return;  // the whole warp
  const bool adds = span.A != nullptr;
  uint2 b[kSteps][kProducts] = {};
  if (adds) load_A<T, kSteps>(b, span, p.rank, strip, group, part);

  const T* weight = static_cast<const T*>(span.weight) + column;
  T* merged = static_cast<T*>(span.merged) + column;
  const T* B = static_cast<const T*>(span.B);
  for (int tile = 0; tile < kTiles && first + tile * kTileRows < span.rows; tile += kAtOnce<kSteps>) {
    uint4 sums[kAtOnce<kSteps>][2];
    uint2 factors[kAtOnce<kSteps>][2][kSteps];
#pragma unroll
    for (int t = 0; t < kAtOnce<kSteps>; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + (tile + t) * kTileRows + half * 8 + group;
        sums[t][half] = row < span.rows && column < span.width
                            ? *reinterpret_cast<const uint4*>(weight + int64_t{row} * span.width)
                            : uint4{};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          factors[t][half][step] =
              row < span.rows && adds ? load_four(B + int64_t{row} * p.rank, 16 * step + 4 * part, p.rank) : uint2{};
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kAtOnce<kSteps>; ++t) {
      uint32_t result[2][kProducts];
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        float sum[4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const uint2 upper = factors[t][0][step], lower = factors[t][1][step];
          multiply<T>(sum, upper.x, lower.x, upper.y, lower.y, b[step][j].x, b[step][j].y);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t before = word(sums[t][half], j);
          result[half][j] = adds ? merged_pair<T>(before, p.scale, sum[2 * half], sum[2 * half + 1]) : before;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + (tile + t) * kTileRows + half * 8 + group;
        if (row < span.rows && column < span.width) {
          *reinterpret_cast<uint4*>(merged + int64_t{row} * span.width) = {result[half][0], result[half][1],
                                                                           result[half][2], result[half][3]};
        }
      }
    }
  }
}

// Any width and alignment (N = 1), and float32: a thread has N columns of kPlainRows rows.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) lora_merge_plain(const __grid_constant__ LoraMerge p) {
  const int i = item_of_block(p, p.spans, static_cast<int>(blockIdx.x));
  const LoraMergeSpan& span = p.span[i];
  const int block = static_cast<int>(blockIdx.x) - p.first_block[i];
  const int strips = (span.width + kThreads * N - 1) / (kThreads * N);
  const int column = (block % strips * kThreads + static_cast<int>(threadIdx.x)) * N;
  const int first = block / strips * kPlainRows, rows = min(kPlainRows, span.rows - first);
  if (column >= span.width) return;
  float sums[kPlainRows][N] = {};
  if (span.A != nullptr) {
    const T* A = static_cast<const T*>(span.A) + column;
    const T* B = static_cast<const T*>(span.B) + int64_t{first} * p.rank;
    for (int k = 0; k < p.rank; ++k) {
      const Pack<T, N> a = load_pack<T, N>(A + int64_t{k} * span.width);
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        const float factor = to_float(B[int64_t{min(r, rows - 1)} * p.rank + k]);
#pragma unroll
        for (int n = 0; n < N; ++n) sums[r][n] = fmaf(factor, to_float(a.value[n]), sums[r][n]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
    if (r >= rows) return;
    const int64_t at = int64_t{first + r} * span.width + column;
    Pack<T, N> result = load_pack<T, N>(static_cast<const T*>(span.weight) + at);
    if (span.A != nullptr) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        result.value[n] = from_float<T>(fmaf(p.scale, sums[r][n], to_float(result.value[n])));
      }
    }
    store_pack<T, N>(static_cast<T*>(span.merged) + at, result);
  }
}

int blocks_of(const LoraMergeSpan& span, int rows, int columns) {
  return (span.rows + rows - 1) / rows * ((span.width + columns - 1) / columns);
}

cudaError_t start(void (*kernel)(LoraMerge), const LoraMerge& from, int rows, int columns, cudaStream_t stream) {
  LoraMerge p = from;
  for (int i = 0; i < p.spans; ++i) p.first_block[i + 1] = p.first_block[i] + blocks_of(p.span[i], rows, columns);
  kernel<<<static_cast<unsigned>(p.first_block[p.spans]), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

bool has_packs(const LoraMerge& p) {
  for (int i = 0; i < p.spans; ++i) {
    const LoraMergeSpan& s = p.span[i];
    if (s.width % 4 != 0 || !aligned16(s.merged) || !aligned16(s.weight) || !aligned16(s.A)) return false;
  }
  return true;
}

template <typename T>
cudaError_t start_products(const LoraMerge& p, cudaStream_t stream) {
  if (p.rank <= 16) return start(&lora_merge_products<T, 1>, p, kRows, kColumns, stream);
  if (p.rank <= 32) return start(&lora_merge_products<T, 2>, p, kRows, kColumns, stream);
  if (p.rank <= 48) return start(&lora_merge_products<T, 3>, p, kRows, kColumns, stream);
  return start(&lora_merge_products<T, 4>, p, kRows, kColumns, stream);
}

}  // namespace

bool has_products(const LoraMergeSpan& span, int rank, Element element) {
  return element != Element::f32 && rank <= kMostMergeRank && span.width % 8 == 0 && aligned16(span.merged) &&
         aligned16(span.weight) && aligned16(span.A) && (rank % 4 != 0 || reinterpret_cast<uintptr_t>(span.B) % 8 == 0);
}

cudaError_t launch(const LoraMerge& p, cudaStream_t stream) {
  if (p.spans == 0) return cudaSuccess;
  if (p.by_products) {
    return by_half_element(p.element, [&](auto type) { return start_products<TypeIn<decltype(type)>>(p, stream); });
  }
  if (p.element == Element::f32 && has_packs(p)) {
    return start(&lora_merge_plain<float, 4>, p, kPlainRows, 4 * kThreads, stream);
  }
  return by_element(p.element, [&](auto type) {
    return start(&lora_merge_plain<TypeIn<decltype(type)>, 1>, p, kPlainRows, kThreads, stream);
  });
}

}  // namespace hrm::ops::cuda
