#pragma once
// What the experts' products for every GPU share: tiles of 128 x 128, which eight warps multiply, and TF32 on tensor
// cores. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda {

constexpr int kExpertThreads = 256;
constexpr int kExpertTile = 128;  // rows and columns of a tile; a warp has 64 x 32 of it
constexpr int kExpertStages = 3;
constexpr int kPlainSummands = 8;  // in a stage of the kernels without tensor cores

// Elements of 16 bits, or float32 that are rounded to TF32.
template <typename T>
struct ExpertStage {
  static constexpr int kSummands = 64 / sizeof(T);  // in a stage
  static constexpr int kChunk = 16 / sizeof(T);     // elements of 16 bytes
  // Elements between the rows of an operand in shared memory, so that what is read at a time is in different banks:
  // where a row is one summand of all places, and where it is all summands of one place.
  static constexpr int kAcross = kExpertTile + 8;
  static constexpr int kAlong = kSummands + kChunk;
};

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

// 8 x 8 sums of a thread over a stage in shared memory: rows 4 y ... of both halves of the tile, columns 4 x ... alike.
__device__ inline void multiply_plain(float (&sum)[8][8], const float (*a)[kExpertTile], const float (*b)[kExpertTile],
                                      int y, int x) {
#pragma unroll 2
  for (int r = 0; r < kPlainSummands; ++r) {
    float left[8], right[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[i] = a[r][4 * y + i];
      left[i + 4] = a[r][kExpertTile / 2 + 4 * y + i];
      right[i] = b[r][4 * x + i];
      right[i + 4] = b[r][kExpertTile / 2 + 4 * x + i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
  }
}

// The place in the tile of the i-th of a thread's rows or columns there.
__device__ inline int plain_place(int own, int i) {
  return i / 4 * (kExpertTile / 2) + 4 * own + i % 4;
}

}  // namespace hrm::ops::cuda
