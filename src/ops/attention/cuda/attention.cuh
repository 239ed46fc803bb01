#pragma once
// Shared code of the portable attention kernels: tiles in shared memory, tensor-core fragments (PTX ISA, "Matrix
// fragments for mma.m16n8k16") and the rotation.
//
// A warp's lanes are numbered g = lane / 4, t = lane % 4. In the accumulator of a 16 x 8 product, a lane holds (g, 2t),
// (g, 2t+1), (g+8, 2t), (g+8, 2t+1). Two neighbouring accumulators, rounded to 16 bits, are the left operand of the
// next product over those 16 columns. No exchange between lanes is needed.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/matrix_copies.cuh"

namespace hrm::ops::cuda {

template <typename T>
struct Pair;  // two 16-bit elements in a register

template <>
struct Pair<__nv_bfloat16> {
  static __device__ float2 unpack(uint32_t bits) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  }
  static __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

template <>
struct Pair<__half> {
  static __device__ float2 unpack(uint32_t bits) { return __half22float2(reinterpret_cast<const __half2&>(bits)); }
  static __device__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

// c += a b for a 16 x 16 by 16 x 8 product.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  HRM_SM80_ASM(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  HRM_SM80_ASM(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads 16 bytes that are read only once, without evicting the rotation table from the L1 cache.
__device__ inline uint4 load_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// A tile of rows of kHeadDim 16-bit elements in shared memory. The 16-byte chunks of a row are permuted by the row
// index, so chunks with the same index in eight rows are in different banks.
template <int kHeadDim>
struct Tile {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  // Byte offset of a chunk.
  static __device__ uint32_t at(int row, int chunk) {
    const int turn = kHeadDim == 64 ? row & 7 : (row >> 1) & 3;
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ turn) << 4));
  }
};

// Rotates (a, b) by the angle with this cosine and sine; -sine rotates by the opposite angle.
__device__ inline void turn(float& a, float& b, float cosine, float sine) {
  const float first = fmaf(a, cosine, -(b * sine));
  b = fmaf(b, cosine, a * sine);
  a = first;
}

// Eight pairs of dimensions at once.
template <typename T>
__device__ inline void turn_chunks(uint4& low, uint4& high, const float4 (&cosine)[2], const float4 (&sine)[2]) {
  uint32_t* a = reinterpret_cast<uint32_t*>(&low);
  uint32_t* b = reinterpret_cast<uint32_t*>(&high);
  const float* c = reinterpret_cast<const float*>(cosine);
  const float* s = reinterpret_cast<const float*>(sine);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 x = Pair<T>::unpack(a[i]), y = Pair<T>::unpack(b[i]);
    turn(x.x, y.x, c[2 * i], s[2 * i]);
    turn(x.y, y.y, c[2 * i + 1], s[2 * i + 1]);
    a[i] = Pair<T>::pack(x.x, x.y);
    b[i] = Pair<T>::pack(y.x, y.y);
  }
}

// Loads the q and k rows of one head into two tiles and rotates them by their positions. Rows from `length` on become
// zero. q_from, k_from: row 0; consecutive rows are row_stride elements apart. kThreads = 2 per tile row.
template <typename T, int kHeadDim, int kTiles>
__device__ inline void load_rotated(const T* q_from, const T* k_from, int64_t row_stride, int length, const float* cos,
                                    const float* sin, unsigned char* q, unsigned char* k) {
  constexpr int kThreads = kTiles * 32;
  constexpr int kPairs = kHeadDim / 16;  // chunk c is paired with chunk c + kPairs
  constexpr int kRounds = kTiles * 16 * kPairs / kThreads;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int chunk = lane % kPairs;
  const auto row_of = [&](int round) {
    const int first = (warp + round * kTiles) * (32 / kPairs);
    // Eight neighbouring lanes store to rows four apart, so the tile's permutation spreads them over all banks.
    if constexpr (kHeadDim == 64) return first + (lane >> 2 & 1) * 4 + (lane >> 3);
    return first + (lane >> 1 & 1) + (lane >> 2 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 4) * 8;
  };
  uint4 data[kRounds][4];
  float4 cosine[kRounds][2], sine[kRounds][2];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int row = row_of(i);
    if (row < length) {
      const T* from = q_from + row * row_stride + chunk * 8;
      data[i][0] = load_once(from);
      data[i][1] = load_once(from + kHeadDim / 2);
      from = k_from + row * row_stride + chunk * 8;
      data[i][2] = load_once(from);
      data[i][3] = load_once(from + kHeadDim / 2);
      if (cos != nullptr) {
        const auto* c_from = reinterpret_cast<const float4*>(cos + row * (kHeadDim / 2) + chunk * 8);
        const auto* s_from = reinterpret_cast<const float4*>(sin + row * (kHeadDim / 2) + chunk * 8);
        cosine[i][0] = __ldg(c_from), cosine[i][1] = __ldg(c_from + 1);
        sine[i][0] = __ldg(s_from), sine[i][1] = __ldg(s_from + 1);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) data[i][j] = make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int row = row_of(i);
    if (cos != nullptr && row < length) {
      turn_chunks<T>(data[i][0], data[i][1], cosine[i], sine[i]);
      turn_chunks<T>(data[i][2], data[i][3], cosine[i], sine[i]);
    }
    const uint32_t low = Tile<kHeadDim>::at(row, chunk), high = Tile<kHeadDim>::at(row, chunk + kPairs);
    *reinterpret_cast<uint4*>(q + low) = data[i][0];
    *reinterpret_cast<uint4*>(q + high) = data[i][1];
    *reinterpret_cast<uint4*>(k + low) = data[i][2];
    *reinterpret_cast<uint4*>(k + high) = data[i][3];
  }
}

// Copies rows 0 to 16 * kTiles - 1 into a tile with asynchronous copies; rows from `length` on become zero.
template <typename T, int kHeadDim, int kTiles>
__device__ inline void load_async(const T* from, int64_t row_stride, int length, uint32_t to) {
  constexpr int kThreads = kTiles * 32;
  constexpr int kChunks = Tile<kHeadDim>::kChunks;
#pragma unroll
  for (int i = 0; i < kTiles * 16 * kChunks / kThreads; ++i) {
    const int item = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = item / kChunks, chunk = item % kChunks;
    const bool valid = row < length;
    copy_async(to + Tile<kHeadDim>::at(row, chunk), from + (valid ? row : 0) * row_stride + chunk * 8, valid);
  }
}

// Stores a warp's 16 rows of accumulators, times `factor` per row half, to device memory, through the warp's rows of a
// tile.
template <typename T, int kHeadDim>
__device__ inline void store_rows(const float (&values)[kHeadDim / 8][4], float factor_low, float factor_high,
                                  unsigned char* tile, int first_row, int length, T* to, int64_t row_stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    *reinterpret_cast<uint32_t*>(tile + Tile<kHeadDim>::at(first_row + g, n) + 4 * t) =
        Pair<T>::pack(values[n][0] * factor_low, values[n][1] * factor_low);
    *reinterpret_cast<uint32_t*>(tile + Tile<kHeadDim>::at(first_row + g + 8, n) + 4 * t) =
        Pair<T>::pack(values[n][2] * factor_high, values[n][3] * factor_high);
  }
  __syncwarp();
  constexpr int kChunks = Tile<kHeadDim>::kChunks;
#pragma unroll
  for (int i = 0; i < kChunks / 2; ++i) {
    const int item = lane + i * 32;
    const int row = first_row + item / kChunks, chunk = item % kChunks;
    if (row < length) {
      *reinterpret_cast<uint4*>(to + row * row_stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + Tile<kHeadDim>::at(row, chunk));
    }
  }
}

}  // namespace hrm::ops::cuda
