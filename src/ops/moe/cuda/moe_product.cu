// Products of the experts' rows with their expert's weight on every GPU. A block has a tile of 128 rows, which one
// expert owns, and 128 columns. Sums are float32 and rounded once; their order is always the same.
//
// Tensor cores multiply 16-bit elements, and float32 where TF32 is allowed. All else, also odd sizes, is multiplied by
// plain fused additions.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/matrix_copies.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/moe/cuda/expert_tiles.cuh"
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kTile = kExpertTile;

// The tile of this block. Rows behind all experts have nothing to multiply.
struct ProductTile {
  bool used;
  int column;
  int64_t row;
  int64_t expert;

  __device__ explicit ProductTile(const MoeProduct& p) {
    const int columns = static_cast<int>((p.n + kTile - 1) / kTile), block = static_cast<int>(blockIdx.x);
    column = block % columns * kTile;
    row = int64_t{block / columns} * kTile;
    used = row < *p.end;
    expert = used ? p.tile_experts[block / columns] : 0;
  }
};

// ---- Tensor cores ----

// Shared memory of a stage: the rows, then the weight, whose summands lie side by side or, transposed, in rows.
template <typename T, bool kTransposed>
struct Stage : ExpertStage<T> {
  using S = ExpertStage<T>;
  static constexpr int kRowsSize = kTile * S::kAlong;
  static constexpr int kWeightSize = kTransposed ? S::kSummands * S::kAcross : kTile * S::kAlong;
  static constexpr int kSize = kRowsSize + kWeightSize;  // elements
  static constexpr int kBytes = kExpertStages * kSize * static_cast<int>(sizeof(T));
};

// A warp's 64 x 32 of the tile, from a stage: rows of a from `m` on, columns of the product from `n` on.
template <typename T, bool kTransposed>
__device__ inline void multiply_stage(float (&sum)[4][4][4], const T* a, const T* b, int m, int n, int lane) {
  using S = Stage<T, kTransposed>;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int k = 0; k < S::kSummands; k += 16) {
      uint32_t left[4][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* from = a + (m + 16 * i + lane / 8 % 2 * 8 + lane % 8) * S::kAlong + k + lane / 16 * 8;
        load_matrices(left[i], shared_address(from));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kTransposed) {
          const T* from = b + (k + lane / 8 % 2 * 8 + lane % 8) * S::kAcross + n + 16 * j + lane / 16 * 8;
          load_matrices_transposed(right[j], shared_address(from));
        } else {
          const T* from = b + (n + 16 * j + lane / 16 * 8 + lane % 8) * S::kAlong + k + lane / 8 % 2 * 8;
          load_matrices(right[j], shared_address(from));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply<T>(sum[i][j], left[i][0], left[i][1], left[i][2], left[i][3], right[j / 2][j % 2 * 2],
                      right[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  } else {
    const int group = lane / 4, part = lane % 4;
#pragma unroll
    for (int k = 0; k < S::kSummands; k += 8) {
      uint32_t left[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float *low = a + (m + 16 * i + group) * S::kAlong + k + part, *high = low + 8 * S::kAlong;
        left[i][0] = to_tf32(low[0]);
        left[i][1] = to_tf32(high[0]);
        left[i][2] = to_tf32(low[4]);
        left[i][3] = to_tf32(high[4]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = n + 8 * j + group;
        const float* from = kTransposed ? b + (k + part) * S::kAcross + column : b + column * S::kAlong + k + part;
        const uint32_t b0 = to_tf32(from[0]), b1 = to_tf32(from[kTransposed ? 4 * S::kAcross : 4]);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_tf32(sum[i][j], left[i], b0, b1);
      }
    }
  }
}

// k and n are multiples of 16 bytes, all operands aligned to them. Eight warps, 64 x 32 of the tile each.
template <typename T, bool kTransposed>
__global__ void __launch_bounds__(kExpertThreads, 2) tensor_core_product(const MoeProduct p) {
  using S = Stage<T, kTransposed>;
  extern __shared__ uint4 shared_chunks[];
  T* const stages = reinterpret_cast<T*>(shared_chunks);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  wait_for_earlier();
  const ProductTile tile(p);
  if (!tile.used) return;

  const T *const rows = static_cast<const T*>(p.rows) + tile.row * p.k, *const weight =
                                                                            static_cast<const T*>(p.weight) +
                                                                            tile.expert * p.k * p.n;
  const auto load = [&](int step) {
    T* const to_rows = stages + step % kExpertStages * S::kSize;
    T* const to_weight = to_rows + S::kRowsSize;
    const int64_t first = int64_t{step} * S::kSummands;
    constexpr int kAlongChunks = S::kSummands / S::kChunk, kAcrossChunks = kTile / S::kChunk;
#pragma unroll
    for (int i = 0; i < kTile * kAlongChunks / kExpertThreads; ++i) {
      const int chunk = thread + i * kExpertThreads, r = chunk / kAlongChunks, c = chunk % kAlongChunks * S::kChunk;
      const bool inside = first + c < p.k;
      copy_async(shared_address(to_rows + r * S::kAlong + c), inside ? rows + r * p.k + first + c : rows, inside);
    }
#pragma unroll
    for (int i = 0; i < kTile * kAlongChunks / kExpertThreads; ++i) {
      const int chunk = thread + i * kExpertThreads;
      if constexpr (kTransposed) {
        const int r = chunk / kAcrossChunks, c = chunk % kAcrossChunks * S::kChunk;
        const bool inside = first + r < p.k && tile.column + c < p.n;
        copy_async(shared_address(to_weight + r * S::kAcross + c),
                   inside ? weight + (first + r) * p.n + tile.column + c : weight, inside);
      } else {
        const int r = chunk / kAlongChunks, c = chunk % kAlongChunks * S::kChunk;
        const bool inside = first + c < p.k && tile.column + r < p.n;
        copy_async(shared_address(to_weight + r * S::kAlong + c),
                   inside ? weight + (tile.column + r) * p.k + first + c : weight, inside);
      }
    }
  };
  const auto steps = static_cast<int>((p.k + S::kSummands - 1) / S::kSummands);
#pragma unroll
  for (int step = 0; step < kExpertStages - 1; ++step) {
    if (step < steps) load(step);
    copy_async_commit();
  }

  const int m = warp / 4 * 64, n = warp % 4 * 32;
  float sum[4][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kExpertStages - 2>();
    __syncthreads();  // the stage has come, and the one that is loaded next has been read by all
    if (step + kExpertStages - 1 < steps) load(step + kExpertStages - 1);
    copy_async_commit();
    const T* const a = stages + step % kExpertStages * S::kSize;
    multiply_stage<T, kTransposed>(sum, a, a + S::kRowsSize, m, n, lane);
  }

  const int group = lane / 4, part = lane % 4;
  T* const out = static_cast<T*>(p.out) + (tile.row + m) * p.n;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const row = out + (16 * i + 8 * half + group) * p.n;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = tile.column + n + 8 * j + 2 * part;
        if (column >= p.n) continue;
        store_pack(row + column,
                   Pack<T, 2>{from_float<T>(sum[i][j][2 * half]), from_float<T>(sum[i][j][2 * half + 1])});
      }
    }
  }
}

// ---- Fused additions ----

// Any k and n.
template <typename T, bool kTransposed>
__global__ void __launch_bounds__(kExpertThreads, 2) plain_product(const MoeProduct p) {
  __shared__ float a[kPlainSummands][kTile], b[kPlainSummands][kTile];
  wait_for_earlier();
  const ProductTile tile(p);
  if (!tile.used) return;
  const int thread = static_cast<int>(threadIdx.x), y = thread / 16, x = thread % 16;
  constexpr int kLoads = kPlainSummands * kTile / kExpertThreads;  // of a thread and operand
  // Summands side by side: a thread loads some of one row. Summands in rows: every second of one column.
  const int along_row = thread / (kPlainSummands / kLoads), along = thread % (kPlainSummands / kLoads) * kLoads;
  const int across_row = thread / kTile, across = thread % kTile;
  const T *const rows = static_cast<const T*>(p.rows) + (tile.row + along_row) * p.k, *const weight =
                                                                                          static_cast<const T*>(
                                                                                              p.weight) +
                                                                                          tile.expert * p.k * p.n;
  float sum[8][8] = {};
  for (int64_t first = 0; first < p.k; first += kPlainSummands) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      a[along + i][along_row] = first + along + i < p.k ? to_float(rows[first + along + i]) : 0.0f;
      if constexpr (kTransposed) {
        const int r = across_row + i * (kExpertThreads / kTile);
        const bool inside = first + r < p.k && tile.column + across < p.n;
        b[r][across] = inside ? to_float(weight[(first + r) * p.n + tile.column + across]) : 0.0f;
      } else {
        const bool inside = first + along + i < p.k && tile.column + along_row < p.n;
        b[along + i][along_row] = inside ? to_float(weight[(tile.column + along_row) * p.k + first + along + i]) : 0.0f;
      }
    }
    __syncthreads();
    multiply_plain(sum, a, b, y, x);
    __syncthreads();
  }
  T* const out = static_cast<T*>(p.out) + tile.row * p.n + tile.column;
  const int64_t columns = p.n - tile.column;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    T* const to = out + plain_place(y, i) * p.n;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = plain_place(x, j);
      if (column < columns) to[column] = from_float<T>(sum[i][j]);
    }
  }
}

template <typename T, bool kTransposed>
cudaError_t start(const MoeProduct& p, cudaStream_t stream) {
  using S = Stage<T, kTransposed>;
  const int64_t blocks = (p.n + kTile - 1) / kTile * p.tiles;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks));
  const bool fits = (sizeof(T) == 2 || p.tf32) && p.k % S::kChunk == 0 && p.n % S::kChunk == 0 && aligned16(p.rows) &&
                    aligned16(p.weight) && aligned16(p.out);
  if (fits) {
    const auto kernel = &tensor_core_product<T, kTransposed>;
    cudaFuncAttributes code{};
    cudaError_t error = cudaFuncGetAttributes(&code, kernel);
    if (error != cudaSuccess) return error;
    if (code.binaryVersion >= 80 && code.ptxVersion >= 80) {  // else its instructions are left out
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes);
      if (error != cudaSuccess) return error;
      return start_early(kernel, grid, kExpertThreads, S::kBytes, stream, p);
    }
  }
  return start_early(&plain_product<T, kTransposed>, grid, kExpertThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const MoeProduct& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return p.transposed ? start<T, true>(p, stream) : start<T, false>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
