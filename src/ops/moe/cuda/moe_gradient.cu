// The gradient of the experts' weights on every GPU: for each expert the product over its own rows, of which only the
// device knows how many they are. Sums and result are float32. A block has a tile of 128 x 128 of one expert's
// gradient, reads it, adds to it and writes it, so the order of additions is always the same.
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

// The tile of this block. Of an expert without rows nothing is to be added.
struct GradientTile {
  int expert, row, column;
  int64_t first, end;  // rows that are summed over

  __device__ explicit GradientTile(const MoeGradient& p) {
    const int columns = static_cast<int>((p.n + kTile - 1) / kTile), rows = static_cast<int>((p.m + kTile - 1) / kTile);
    const int block = static_cast<int>(blockIdx.x);
    column = block % columns * kTile;
    row = block / columns % rows * kTile;
    expert = block / columns / rows;
    first = p.starts[expert];
    end = p.starts[expert + 1];
  }
};

// ---- Tensor cores ----

template <typename T>
constexpr int kSharedBytes = kExpertStages * 2 *
                             ExpertStage<T>::kSummands* ExpertStage<T>::kAcross* static_cast<int>(sizeof(T));

// A warp's 64 x 32 of the tile, from a stage: rows of a from column `m` on and of b from column `n` on.
template <typename T>
__device__ inline void multiply_stage(float (&sum)[4][4][4], const T* a, const T* b, int m, int n, int lane) {
  using S = ExpertStage<T>;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int k = 0; k < S::kSummands; k += 16) {
      uint32_t left[4][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* from = a + (k + lane / 16 * 8 + lane % 8) * S::kAcross + m + 16 * i + lane / 8 % 2 * 8;
        load_matrices_transposed(left[i], shared_address(from));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const T* from = b + (k + lane / 8 % 2 * 8 + lane % 8) * S::kAcross + n + 16 * j + lane / 16 * 8;
        load_matrices_transposed(right[j], shared_address(from));
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
      const float *low = a + (k + part) * S::kAcross + m + group, *high = low + 4 * S::kAcross;
      uint32_t left[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        left[i][0] = to_tf32(low[16 * i]);
        left[i][1] = to_tf32(low[16 * i + 8]);
        left[i][2] = to_tf32(high[16 * i]);
        left[i][3] = to_tf32(high[16 * i + 8]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* from = b + (k + part) * S::kAcross + n + 8 * j + group;
        const uint32_t b0 = to_tf32(from[0]), b1 = to_tf32(from[4 * S::kAcross]);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_tf32(sum[i][j], left[i], b0, b1);
      }
    }
  }
}

// m and n are multiples of 16 bytes, a and b aligned to them. Eight warps, 64 x 32 of the tile each.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads, 2) tensor_core_gradient(const MoeGradient p) {
  using S = ExpertStage<T>;
  extern __shared__ uint4 shared_chunks[];
  T* const stages = reinterpret_cast<T*>(shared_chunks);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_earlier();
  const GradientTile tile(p);
  const auto steps = static_cast<int>((tile.end - tile.first) / S::kSummands);
  if (steps == 0 && !p.overwrite) return;

  const T *const all_a = static_cast<const T*>(p.a), *const all_b = static_cast<const T*>(p.b);
  const auto load = [&](int step) {
    T* const to_a = stages + step % kExpertStages * (2 * S::kSummands * S::kAcross);
    T* const to_b = to_a + S::kSummands * S::kAcross;
    constexpr int kChunks = kTile / S::kChunk;  // of a row
#pragma unroll
    for (int i = 0; i < S::kSummands * kChunks / kExpertThreads; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kExpertThreads, r = chunk / kChunks,
                c = chunk % kChunks * S::kChunk;
      const int64_t row = tile.first + int64_t{step} * S::kSummands + r;
      const bool in_a = tile.row + c < p.m, in_b = tile.column + c < p.n;
      copy_async(shared_address(to_a + r * S::kAcross + c), in_a ? all_a + row * p.m + tile.row + c : all_a, in_a);
      copy_async(shared_address(to_b + r * S::kAcross + c), in_b ? all_b + row * p.n + tile.column + c : all_b, in_b);
    }
  };
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
    const T* const a = stages + step % kExpertStages * (2 * S::kSummands * S::kAcross);
    multiply_stage<T>(sum, a, a + S::kSummands * S::kAcross, m, n, lane);
  }

  const int group = lane / 4, part = lane % 4;
  float* const grad = p.grad + int64_t{tile.expert} * p.m * p.n;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = tile.row + m + 16 * i + 8 * half + group;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = tile.column + n + 8 * j + 2 * part;
        if (row >= p.m || column >= p.n) continue;
        float2* const to = reinterpret_cast<float2*>(grad + row * p.n + column);
        float2 value = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
        if (!p.overwrite) {
          const float2 old = *to;
          value.x += old.x;
          value.y += old.y;
        }
        *to = value;
      }
    }
  }
}

// ---- Fused additions ----

// Any m and n. A thread has 8 x 8 of the tile: rows 4 * y ... of both halves, and columns likewise.
template <typename T>
__global__ void __launch_bounds__(kExpertThreads, 2) plain_gradient(const MoeGradient p) {
  __shared__ float a[kPlainSummands][kTile], b[kPlainSummands][kTile];
  wait_for_earlier();
  const GradientTile tile(p);
  if (tile.first == tile.end && !p.overwrite) return;
  const int thread = static_cast<int>(threadIdx.x), y = thread / 16, x = thread % 16;
  // A thread loads every second row of one column of both.
  const int own_row = thread / kTile, own = thread % kTile;
  const bool in_a = tile.row + own < p.m, in_b = tile.column + own < p.n;
  const T* from_a = static_cast<const T*>(p.a) + (tile.first + own_row) * p.m + tile.row + own;
  const T* from_b = static_cast<const T*>(p.b) + (tile.first + own_row) * p.n + tile.column + own;
  float sum[8][8] = {};
  for (auto rows = static_cast<int>(tile.end - tile.first); rows > 0; rows -= kPlainSummands) {
#pragma unroll
    for (int r = 0; r < kPlainSummands; r += kExpertThreads / kTile) {
      a[own_row + r][own] = in_a ? to_float(*from_a) : 0.0f;
      b[own_row + r][own] = in_b ? to_float(*from_b) : 0.0f;
      from_a += kExpertThreads / kTile * p.m;
      from_b += kExpertThreads / kTile * p.n;
    }
    __syncthreads();
    multiply_plain(sum, a, b, y, x);
    __syncthreads();
  }
  const int m = static_cast<int>(p.m) - tile.row, n = static_cast<int>(p.n) - tile.column;  // to the edges
  float* const corner = p.grad + (int64_t{tile.expert} * p.m + tile.row) * p.n + tile.column;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = plain_place(y, i);
    if (row >= m) continue;
    float* const to = corner + row * p.n;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = plain_place(x, j);
      if (column < n) to[column] = p.overwrite ? sum[i][j] : to[column] + sum[i][j];
    }
  }
}

template <typename T>
cudaError_t start(const MoeGradient& p, cudaStream_t stream) {
  const int64_t blocks = (p.m + kTile - 1) / kTile * ((p.n + kTile - 1) / kTile) * p.experts;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks));
  constexpr int64_t kChunk = ExpertStage<T>::kChunk;
  const bool fits = (sizeof(T) == 2 || p.tf32) && p.m % kChunk == 0 && p.n % kChunk == 0 && aligned16(p.a) &&
                    aligned16(p.b) && aligned16(p.grad);
  if (fits) {
    cudaFuncAttributes code{};
    cudaError_t error = cudaFuncGetAttributes(&code, tensor_core_gradient<T>);
    if (error != cudaSuccess) return error;
    if (code.binaryVersion >= 80 && code.ptxVersion >= 80) {  // else its instructions are left out
      error =
          cudaFuncSetAttribute(tensor_core_gradient<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<T>);
      if (error != cudaSuccess) return error;
      return start_early(&tensor_core_gradient<T>, grid, kExpertThreads, kSharedBytes<T>, stream, p);
    }
  }
  return start_early(&plain_gradient<T>, grid, kExpertThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const MoeGradient& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) { return start<TypeIn<decltype(type)>>(p, stream); });
}

}  // namespace hrm::ops::cuda
