#pragma once
// Shared code of the Hopper attention kernels.

#include "ops/attention/cuda/attention.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/primitives.cuh"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/quantized/cuda/fp8.cuh"

namespace hrm::ops::cuda::sm90 {

// (batch, length, width) of 16-bit elements, in boxes of one head and `rows` positions of one sequence. Positions past
// the end read as zeros.
inline cudaError_t encode_heads(CUtensorMap& map, const void* base, int64_t batch, int64_t length, int64_t width,
                                int rows) {
  return encode_map(map, base, MapElement::bits16, MapSwizzle::bytes128,
                    {{width, 0, 64}, {length, 2 * width, rows}, {batch, 2 * width * length, 1}});
}

// The shortest length that uses kN columns of scores; columns below it need no bounds test.
template <int kN>
constexpr int kShortest = kN == 64    ? 1
                          : kN == 88  ? 65
                          : kN == 104 ? 89
                                      : 105;

// Tells the compiler that the first wgmma of a sum defines these registers, which the operand list cannot express.
// Otherwise it would keep their contents from one loop iteration to the next.
template <int kCount>
__device__ inline void registers_define(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}

// Zeroes the registers at this point. The compiler would hoist a plain initialisation to where these registers hold
// other values.
template <int kCount>
__device__ inline void registers_clear(uint32_t (&d)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) asm volatile("mov.b32 %0, 0;" : "=r"(d[i / 4][i % 4]));
}

constexpr float kLog2e = 1.4426950408889634f;

// Replaces the scores of a warp's 16 rows by rounded weights exp(scale * (score - largest)), as a wgmma operand.
// Columns past the length get zero weight. shift: for the lane's two rows, the largest score times scale * log2(e).
// sum: the lane's weights are added to it before rounding.
template <typename T, int kScores, int kKeyTiles>
__device__ inline void softmax_weights(float (&score)[kScores], int lane, int length, float scale_of_scores,
                                       uint32_t (&weight)[kKeyTiles][4], float (&shift)[2], float (&sum)[2]) {
  constexpr int kN = 2 * kScores;
  const int t = lane % 4;
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    if (n * 8 + 8 > kShortest<kN> && n * 8 + 8 > length) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + i % 2 >= length - 2 * t) score[4 * n + i] = -INFINITY;
      }
    }
    largest[0] = fmaxf(largest[0], fmaxf(score[4 * n], score[4 * n + 1]));
    largest[1] = fmaxf(largest[1], fmaxf(score[4 * n + 2], score[4 * n + 3]));
  }
  const float scale = scale_of_scores * kLog2e;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
    shift[half] = largest[half] * scale;
  }
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) e[i] = exp2_approx(fmaf(score[4 * n + i], scale, -shift[i / 2]));
    sum[0] += e[0] + e[1];
    sum[1] += e[2] + e[3];
    weight[n / 2][n % 2 * 2] = Pair<T>::pack(e[0], e[1]);
    weight[n / 2][n % 2 * 2 + 1] = Pair<T>::pack(e[2], e[3]);
  }
  if constexpr (kN % 16 != 0) weight[kKeyTiles - 1][2] = weight[kKeyTiles - 1][3] = 0;
}

// The lane index, recomputed, so the compiler does not keep (and spill) addresses derived from it across a persistent
// loop.
__device__ inline int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// The table entries are the same for every head, but keeping them in registers would displace the scores. volatile
// makes the compiler leave them to the L1 cache.
__device__ inline float4 load_table(const float* from) {
  float4 value;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from));
  return value;
}

// Four pairs of dimensions: two registers from each half.
template <typename T>
__device__ inline void turn_four(uint2& low, uint2& high, const float4& cosine, const float4& sine) {
  float2 a = Pair<T>::unpack(low.x), b = Pair<T>::unpack(high.x);
  turn(a.x, b.x, cosine.x, sine.x);
  turn(a.y, b.y, cosine.y, sine.y);
  low.x = Pair<T>::pack(a.x, a.y);
  high.x = Pair<T>::pack(b.x, b.y);
  a = Pair<T>::unpack(low.y), b = Pair<T>::unpack(high.y);
  turn(a.x, b.x, cosine.z, sine.z);
  turn(a.y, b.y, cosine.w, sine.w);
  low.y = Pair<T>::pack(a.x, a.y);
  high.y = Pair<T>::pack(b.x, b.y);
}

// Stores four 8 x 8 matrices to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Loads a value that is read only once, past the L1 cache, which keeps the rotation table.
__device__ inline float load_once(const float* from) {
  float value;
  asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

// Stores 16 bytes of a result past the L1 cache, which keeps the rotation table in the backward pass.
__device__ inline void store_once(void* to, const uint4& value) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// descriptor + by. Addresses do not carry into the upper half, so it remains a constant.
__device__ inline uint64_t descriptor_plus(uint64_t descriptor, uint32_t by) {
  return (descriptor & 0xffffffff00000000u) | (static_cast<uint32_t>(descriptor) + by);
}

// The head that a persistent block works on, item = batch * heads + head, advanced without a division.
struct HeadPosition {
  int item, batch, head;
  __device__ HeadPosition(int item, int heads) : item(item), batch(item / heads), head(item % heads) {}
  __device__ void advance(const HeadPosition& step, int heads) {
    item += step.item;
    batch += step.batch;
    head += step.head;
    if (head >= heads) {
      head -= heads;
      ++batch;
    }
  }
  __device__ void retreat(const HeadPosition& step, int heads) {
    item -= step.item;
    batch -= step.batch;
    head -= step.head;
    if (head < 0) {
      head += heads;
      --batch;
    }
  }
};

// Stores a warp's 16 rows of 64 results to its rows of a tile, where all of its lanes can read them. The rows are pairs
// of columns 8n + 2t of row g (rows[2n]) and of row g + 8 (rows[2n + 1]).
__device__ inline void share_rows(const uint32_t (&rows)[16], unsigned char* tile, int first_row, uint32_t lane) {
  // Tiles start at multiples of 1024 bytes and first_row is a multiple of 16, so only the lane decides how a row is
  // permuted.
  const uint32_t at = shared_address(tile) + (first_row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const uint32_t part[4] = {rows[2 * n], rows[2 * n + 1], rows[2 * n + 2], rows[2 * n + 3]};
    store_matrices(at ^ n << 4, part);
  }
  __syncwarp();
}

// Writes rows to device memory through the tile; eight lanes have one row. done() is called after the tile has been
// read.
template <typename T, typename Done>
__device__ inline void store_rows(const uint32_t (&rows)[16], unsigned char* tile, int first_row, int length, T* to,
                                  int row_stride, const Done& done) {
  const uint32_t lane = fresh_lane();
  share_rows(rows, tile, first_row, lane);
  const uint32_t at = lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
  tile += first_row * 128;
  uint4 part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) part[i] = *reinterpret_cast<const uint4*>(tile + (at ^ i % 2 << 6) + i * 512);
  done();
  const int row = first_row + static_cast<int>(lane / 8);
  to += row * row_stride + lane % 8 * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row + 4 * i < length) store_once(to, part[i]);
    to += 4 * row_stride;
  }
}

// The same in e4m3, times `scale`; four lanes have one row. `largest` as in larger_sizes().
template <Input kInput, typename Done>
__device__ inline void store_rows_e4m3(const uint32_t (&rows)[16], unsigned char* tile, int first_row, int length,
                                       uint8_t* to, int row_stride, float scale, uint32_t& largest, const Done& done) {
  const uint32_t lane = fresh_lane();
  share_rows(rows, tile, first_row, lane);
  const uint32_t at = lane / 4 * 128 + ((lane % 4 * 2 ^ lane / 4) << 4);
  tile += first_row * 128;
  uint4 part[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    part[i / 2][i % 2] = *reinterpret_cast<const uint4*>(tile + (at ^ i % 2 << 4) + i / 2 * 1024);
  }
  done();
  const int row = first_row + static_cast<int>(lane / 4);
  to += row * row_stride + lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + 8 * i < length) {
      const uint4 &a = part[i][0], &b = part[i][1];
      largest = larger_sizes(larger_sizes(larger_sizes(larger_sizes(largest, a.x), a.y), a.z), a.w);
      largest = larger_sizes(larger_sizes(larger_sizes(larger_sizes(largest, b.x), b.y), b.z), b.w);
      store_once(to, make_uint4(quantize_pairs<kInput>(a.x, a.y, scale), quantize_pairs<kInput>(a.z, a.w, scale),
                                quantize_pairs<kInput>(b.x, b.y, scale), quantize_pairs<kInput>(b.z, b.w, scale)));
    }
    to += 8 * row_stride;
  }
}

// Rotates q and k of one head after another by their positions, in place. The tiles are swizzled, with kRows rows of
// 128 bytes, and k is kDistance bytes behind q. Four warps share the rows and keep their table entries. Eight lanes
// have one row, four pairs of dimensions each. The rows of a half warp are four apart, so the swizzle spreads them over
// all banks. Rows past the end are zeros and stay zeros.
template <typename T, int kRows, int kDistance>
class Rotation {
 public:
  __device__ void load(const float* cos, const float* sin, int length, int warp, int lane) {
    rounds_ = (kRows / 4 - warp + 3) / 4;
    // Four warps have 16 rows, so all rows of a lane are swizzled alike.
    const int row = (warp >> 1) * 8 + (warp & 1) * 2 + (lane >> 3 & 1) * 4 + (lane >> 4);
    low_ = row * 128 + (((lane >> 1 & 3) ^ (row & 7)) << 4) + (lane & 1) * 8;
    if (cos == nullptr) return;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int at = min(row + 16 * round, length - 1) * 32 + (lane & 7) * 4;
      cosine_[round] = load_table(cos + at);
      sine_[round] = load_table(sin + at);
    }
  }

  __device__ void turn(unsigned char* q) const {
    unsigned char* const low = q + low_;
    unsigned char* const high = q + (low_ ^ 64);
#pragma unroll
    for (int first = 0; first < kRounds; first += kBatch) {
      uint2 a[kBatch][2], b[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < kRounds && has(first + i)) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            a[i][part] = *reinterpret_cast<const uint2*>(low + (first + i) * 2048 + part * kDistance);
            b[i][part] = *reinterpret_cast<const uint2*>(high + (first + i) * 2048 + part * kDistance);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < kRounds && has(first + i)) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            turn_four<T>(a[i][part], b[i][part], cosine_[first + i], sine_[first + i]);
            *reinterpret_cast<uint2*>(low + (first + i) * 2048 + part * kDistance) = a[i][part];
            *reinterpret_cast<uint2*>(high + (first + i) * 2048 + part * kDistance) = b[i][part];
          }
        }
      }
    }
  }

 private:
  static_assert(kRows % 8 == 0);
  static constexpr int kRounds = (kRows + 15) / 16;
  static constexpr int kBatch = kRounds <= 6 ? 3 : 2;
  // Not every warp has rows in the last round.
  __device__ bool has(int round) const {
    return kRows % 16 == 0 || round + 1 < kRounds || rounds_ == kRounds;
  }

  int rounds_;
  uint32_t low_;
  float4 cosine_[kRounds], sine_[kRounds];
};

// Rotates q and k by their positions, in place, for the backward pass. The tiles are swizzled, with kRows rows of 128
// bytes, and k is kDistance bytes behind q. `wait` is called before the first read. Eight lanes have one row, four
// pairs of dimensions each, and read 128 bytes of the table. The rows of a half warp are four apart, so the swizzle
// spreads them over all banks.
//
// Dimension 8t + 2n + e of a half (t, n < 4, e < 2) moves to column 8n + 2t + e. There, a product's accumulators give
// lane t eight neighbouring dimensions. The scores are sums over the dimensions, so they do not change.
template <typename T, int kRows, int kDistance, int kThreads, typename Wait>
__device__ inline void rotate_tiles(unsigned char* q, const float* cos, const float* sin, int length,
                                    const Wait& wait) {
  // The first warpgroup has more work on the scores, so it gets fewer of the units of four rows.
  constexpr int kUnits = (kRows + 3) / 4;
  constexpr int kFirst = kThreads == 128 ? 0 : kRows / 32 * 4;
  constexpr int kRounds = (kUnits - kFirst + 3) / 4;
  const int lane = fresh_lane(), warp = static_cast<int>(threadIdx.x) / 32;
  const bool second = warp >= 4 || kThreads == 128;
  const auto row_of = [&](int round) {
    const int unit = second ? kFirst + warp % 4 + round * 4 : warp + round * 4;
    // Past the warpgroup's own units: a row that does not exist.
    if (!second && round * 4 >= kFirst) return kRows + 128;
    return (unit >> 1) * 8 + (unit & 1) * 2 + (lane >> 3 & 1) * 4 + (lane >> 4);
  };
  float4 cosine[kRounds], sine[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    cosine[round] = make_float4(1, 1, 1, 1), sine[round] = make_float4(0, 0, 0, 0);
    if (cos != nullptr) {
      const int at = min(row_of(round), length - 1) * 32 + (lane & 7) * 4;
      cosine[round] = load_table(cos + at);
      sine[round] = load_table(sin + at);
    }
  }
  wait();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int row = row_of(round);
    const bool valid = row < length;
    const uint32_t turned = static_cast<uint32_t>(row & 7) << 4;
    unsigned char* const row_at = q + row * 128;
    const uint32_t low = ((lane >> 1 & 3) << 4 ^ turned) + (lane & 1) * 8;
    uint2 a[2], b[2];
    if (valid) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        a[part] = *reinterpret_cast<uint2*>(row_at + part * kDistance + low);
        b[part] = *reinterpret_cast<uint2*>(row_at + part * kDistance + (low ^ 64));
        turn_four<T>(a[part], b[part], cosine[round], sine[round]);
      }
    }
    __syncwarp();  // the row's other lanes have read
    if (valid) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t to = ((lane & 1) << 5 ^ turned) + (lane >> 1 & 3) * 4;
        *reinterpret_cast<uint32_t*>(row_at + part * kDistance + to) = a[part].x;
        *reinterpret_cast<uint32_t*>(row_at + part * kDistance + (to ^ 16)) = a[part].y;
        *reinterpret_cast<uint32_t*>(row_at + part * kDistance + (to ^ 64)) = b[part].x;
        *reinterpret_cast<uint32_t*>(row_at + part * kDistance + (to ^ 80)) = b[part].y;
      }
    }
  }
}

}  // namespace hrm::ops::cuda::sm90
