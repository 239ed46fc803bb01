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
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 128;  // rows and columns of a tile

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

// Elements of 16 bits, or float32 that are rounded to TF32.
template <typename T>
struct Steps {
  static constexpr int kRows = 64 / sizeof(T);   // summed over in a stage
  static constexpr int kChunk = 16 / sizeof(T);  // elements of 16 bytes
  static constexpr int kPitch = kTile + 8;       // so that what is read at a time is in different banks
  static constexpr int kBytes = kRows * kPitch * static_cast<int>(sizeof(T));  // of one operand
};
constexpr int kStages = 3;
template <typename T>
constexpr int kSharedBytes = kStages * 2 * Steps<T>::kBytes;

__device__ inline uint32_t to_tf32(float value) {
  uint32_t bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  (void)value;
#endif
  return bits;
}

// sum += a b for 8 summands: a0, a1 summand `part`, a2, a3 `part` + 4 of rows `group` and group + 8; b alike (mma.cuh).
__device__ inline void multiply_tf32(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  (void)sum, (void)a, (void)b0, (void)b1;
#endif
}

// A warp's 64 x 32 of the tile, from a stage: rows of a from column `m` on and of b from column `n` on.
template <typename T>
__device__ inline void multiply_stage(float (&sum)[4][4][4], const T* a, const T* b, int m, int n, int lane) {
  using S = Steps<T>;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int k = 0; k < S::kRows; k += 16) {
      uint32_t left[4][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* from = a + (k + lane / 16 * 8 + lane % 8) * S::kPitch + m + 16 * i + lane / 8 % 2 * 8;
        load_matrices_transposed(left[i], shared_address(from));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const T* from = b + (k + lane / 8 % 2 * 8 + lane % 8) * S::kPitch + n + 16 * j + lane / 16 * 8;
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
    for (int k = 0; k < S::kRows; k += 8) {
      const float *low = a + (k + part) * S::kPitch + m + group, *high = low + 4 * S::kPitch;
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
        const float* from = b + (k + part) * S::kPitch + n + 8 * j + group;
        const uint32_t b0 = to_tf32(from[0]), b1 = to_tf32(from[4 * S::kPitch]);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_tf32(sum[i][j], left[i], b0, b1);
      }
    }
  }
}

// m and n are multiples of 16 bytes, a and b aligned to them. Eight warps, 64 x 32 of the tile each.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) tensor_core_gradient(const MoeGradient p) {
  using S = Steps<T>;
  extern __shared__ uint4 shared_chunks[];
  T* const stages = reinterpret_cast<T*>(shared_chunks);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_earlier();
  const GradientTile tile(p);
  const auto steps = static_cast<int>((tile.end - tile.first) / S::kRows);
  if (steps == 0 && !p.overwrite) return;

  const T *const all_a = static_cast<const T*>(p.a), *const all_b = static_cast<const T*>(p.b);
  const auto load = [&](int step) {
    T* const to_a = stages + step % kStages * (2 * S::kRows * S::kPitch);
    T* const to_b = to_a + S::kRows * S::kPitch;
    constexpr int kChunks = kTile / S::kChunk;  // of a row
#pragma unroll
    for (int i = 0; i < S::kRows * kChunks / kThreads; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kThreads, r = chunk / kChunks,
                c = chunk % kChunks * S::kChunk;
      const int64_t row = tile.first + int64_t{step} * S::kRows + r;
      const bool in_a = tile.row + c < p.m, in_b = tile.column + c < p.n;
      copy_async(shared_address(to_a + r * S::kPitch + c), in_a ? all_a + row * p.m + tile.row + c : all_a, in_a);
      copy_async(shared_address(to_b + r * S::kPitch + c), in_b ? all_b + row * p.n + tile.column + c : all_b, in_b);
    }
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step);
    copy_async_commit();
  }

  const int m = warp / 4 * 64, n = warp % 4 * 32;
  float sum[4][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // the stage has come, and the one that is loaded next has been read by all
    if (step + kStages - 1 < steps) load(step + kStages - 1);
    copy_async_commit();
    const T* const a = stages + step % kStages * (2 * S::kRows * S::kPitch);
    multiply_stage<T>(sum, a, a + S::kRows * S::kPitch, m, n, lane);
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

constexpr int kPlainRows = 8;  // summed over at a time

// Any m and n. A thread has 8 x 8 of the tile: rows 4 * y ... of both halves, and columns likewise.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) plain_gradient(const MoeGradient p) {
  __shared__ float a[kPlainRows][kTile], b[kPlainRows][kTile];
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
  for (auto rows = static_cast<int>(tile.end - tile.first); rows > 0; rows -= kPlainRows) {
#pragma unroll
    for (int r = 0; r < kPlainRows; r += kThreads / kTile) {
      a[own_row + r][own] = in_a ? to_float(*from_a) : 0.0f;
      b[own_row + r][own] = in_b ? to_float(*from_b) : 0.0f;
      from_a += kThreads / kTile * p.m;
      from_b += kThreads / kTile * p.n;
    }
    __syncthreads();
#pragma unroll 2
    for (int r = 0; r < kPlainRows; ++r) {
      float left[8], right[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        left[i] = a[r][4 * y + i];
        left[i + 4] = a[r][kTile / 2 + 4 * y + i];
        right[i] = b[r][4 * x + i];
        right[i + 4] = b[r][kTile / 2 + 4 * x + i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
      }
    }
    __syncthreads();
  }
  const int m = static_cast<int>(p.m) - tile.row, n = static_cast<int>(p.n) - tile.column;  // to the edges
  float* const corner = p.grad + (int64_t{tile.expert} * p.m + tile.row) * p.n + tile.column;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = i / 4 * (kTile / 2) + 4 * y + i % 4;
    if (row >= m) continue;
    float* const to = corner + row * p.n;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = j / 4 * (kTile / 2) + 4 * x + j % 4;
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
  constexpr int64_t kChunk = Steps<T>::kChunk;
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
      return start_early(&tensor_core_gradient<T>, grid, kThreads, kSharedBytes<T>, stream, p);
    }
  }
  return start_early(&plain_gradient<T>, grid, kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const MoeGradient& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) { return start<TypeIn<decltype(type)>>(p, stream); });
}

}  // namespace hrm::ops::cuda
