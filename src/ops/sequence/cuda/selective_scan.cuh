#pragma once
// What the kernels of selective_scan share: tiles in shared memory, the state in registers. Fragments of the tensor
// cores: attention.cuh.

#include <cstdint>

#include "ops/attention/cuda/attention.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/sequence/cuda/selective_scan.h"

namespace hrm::ops::cuda {

// Rows of kWidth 16-bit elements, 64 or 128; 16-byte pieces permuted as in attention.cuh.
template <int kWidth>
struct ScanTile {
  static constexpr int kPieces = kWidth / 8;
  static constexpr int kBytes = kScanChunk * kWidth * 2;
  static __device__ uint32_t at(int row, int piece) {
    return static_cast<uint32_t>(row * kWidth * 2 + ((piece ^ (row & 7)) << 4));
  }
};

// 64 rows; those from `length` on become zero.
template <typename T, int kWidth, int kThreads>
__device__ inline void load_tile(const T* from, int64_t stride, int length, uint32_t to) {
  using Tile = ScanTile<kWidth>;
  constexpr int kRows = kThreads / Tile::kPieces;  // at a time
  const int row = static_cast<int>(threadIdx.x) / Tile::kPieces, piece = static_cast<int>(threadIdx.x) % Tile::kPieces;
  const T* at = from + row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < kScanChunk / kRows; ++i) {
    const bool valid = row + i * kRows < length;
    copy_async(to + Tile::at(row + i * kRows, piece), valid ? at : from, valid);
    at += kRows * stride;
  }
}

// Left operand, 16 x 16, from a tile that holds it row by row ...
template <int kWidth>
__device__ inline void left_operand(uint32_t (&to)[4], uint32_t tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(to, tile + ScanTile<kWidth>::at(row + lane % 16, column / 8 ^ lane / 16));
}
// ... and from one that holds its transpose: element (m, k) is at (row + k, column + m).
template <int kWidth>
__device__ inline void left_operand_transposed(uint32_t (&to)[4], uint32_t tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_transposed(to, tile + ScanTile<kWidth>::at(row + lane % 8 + lane / 16 * 8, column / 8 ^ lane / 8 % 2));
}
// Right operands of two neighbouring products, 16 x 8 each: element (k, n) at (row + n, column + k) ...
template <int kWidth>
__device__ inline void right_operand_transposed(uint32_t (&to)[4], uint32_t tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(to, tile + ScanTile<kWidth>::at(row + lane % 8 + lane / 16 * 8, column / 8 ^ lane / 8 % 2));
}
// ... and at (row + k, column + n).
template <int kWidth>
__device__ inline void right_operand(uint32_t (&to)[4], uint32_t tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_transposed(to, tile + ScanTile<kWidth>::at(row + lane % 16, column / 8 ^ lane / 16));
}

template <typename T>
__device__ inline void multiply_two(float (&c0)[4], float (&c1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  multiply<T>(c0, a, b[0], b[1]);
  multiply<T>(c1, a, b[2], b[3]);
}

// Two neighbours of a tile, in float32.
template <typename T, int kWidth>
__device__ inline float2 pair_at(const unsigned char* tile, int row, int column) {
  const uint32_t offset = ScanTile<kWidth>::at(row, column / 8) + static_cast<uint32_t>(column % 8 * 2);
  return Pair<T>::unpack(*reinterpret_cast<const uint32_t*>(tile + offset));
}
template <typename T, int kWidth>
__device__ inline void set_pair(unsigned char* tile, int row, int column, float low, float high) {
  const uint32_t offset = ScanTile<kWidth>::at(row, column / 8) + static_cast<uint32_t>(column % 8 * 2);
  *reinterpret_cast<uint32_t*>(tile + offset) = Pair<T>::pack(low, high);
}

// The weights of a head's chunk, by all threads of a block.
__device__ inline void load_weights(const ScanWeights* weights, const ScanShape& s, int64_t row, int chunk, int head,
                                    ScanWeights* to) {
  static_assert(sizeof(ScanWeights) / 16 <= 128);
  const int piece = static_cast<int>(threadIdx.x) * 16;
  if (piece < static_cast<int>(sizeof(ScanWeights))) {
    const ScanWeights* const from = weights + (row * s.chunks + chunk) * s.heads + head;
    copy_async(shared_address(to) + static_cast<uint32_t>(piece), reinterpret_cast<const char*>(from) + piece, true);
  }
}

// The state of a head, 64 channels x kState, in the accumulators of 4 * kSides warps: warp w has channels 16 (w % 4) to
// 16 (w % 4) + 15 and the columns of side w / 4.
template <int kState, int kSides>
struct CarriedState {
  static constexpr int kNumbers = kScanChannels * kState, kColumns = kState / kSides;
  float value[kColumns / 8][4];

  static __device__ int band() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }
  static __device__ int side() { return static_cast<int>(threadIdx.x) / 128 * kColumns; }

  __device__ void clear() {
#pragma unroll
    for (auto& four : value) four[0] = four[1] = four[2] = four[3] = 0;
  }
  // Channel and place in the state of value[n][2 * half].
  static __device__ int64_t place(int n, int half) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return (band() + lane / 4 + 8 * half) * kState + side() + n * 8 + lane % 4 * 2;
  }
  // (64, kState).
  __device__ void load_matrix(const float* from) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = *reinterpret_cast<const float2*>(from + place(n, half));
        value[n][2 * half] = two.x;
        value[n][2 * half + 1] = two.y;
      }
    }
  }
  __device__ void store_matrix(float* to) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(to + place(n, half)) = {value[n][2 * half], value[n][2 * half + 1]};
      }
    }
  }
  // In the order of the registers: 16 bytes of each thread beside those of the next; the same for any kSides.
  static __device__ int register_place(int n) {
    return (side() / 8 + n) * 128 + static_cast<int>(threadIdx.x) % 128;
  }
  __device__ void load_registers(const float* from) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const float4 four = reinterpret_cast<const float4*>(from)[register_place(n)];
      value[n][0] = four.x, value[n][1] = four.y, value[n][2] = four.z, value[n][3] = four.w;
    }
  }
  __device__ void store_registers(float* to) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      reinterpret_cast<float4*>(to)[register_place(n)] = {value[n][0], value[n][1], value[n][2], value[n][3]};
    }
  }
  // The warp's numbers into their places of a tile.
  template <typename T>
  __device__ void round_to(unsigned char* tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        set_pair<T, kState>(tile, band() + lane / 4 + 8 * half, side() + n * 8 + lane % 4 * 2, value[n][2 * half],
                            value[n][2 * half + 1]);
      }
    }
  }
  // decay * S + sum over j of weight_j left_j right_j^T; weight: of two neighbours, by their number.
  template <typename T, class Weight>
  __device__ void step(float decay, uint32_t left, uint32_t right, const Weight& weight) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (auto& four : value) {
#pragma unroll
      for (float& number : four) number *= decay;
    }
#pragma unroll 1  // fewer addresses at once
    for (int k = 0; k < kScanChunk; k += 16) {
      uint32_t a[4];
      left_operand_transposed<kScanChannels>(a, left, k, band());
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 by = weight(k + half * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 two = Pair<T>::unpack(a[2 * half + i]);
          a[2 * half + i] = Pair<T>::pack(two.x * by.x, two.y * by.y);
        }
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        uint32_t b[4];
        right_operand<kState>(b, right, k, side() + n);
        multiply_two<T>(value[n / 8], value[n / 8 + 1], a, b);
      }
    }
  }
};

// A block's place among heads, rows and segments; heads of a group side by side, so that they share B and C.
struct SegmentPlace {
  int head, group, segment, first_chunk, end_chunk;
  int64_t row, row_head;
  __device__ SegmentPlace(const ScanShape& s, int64_t block) {
    head = static_cast<int>(block % s.heads);
    block /= s.heads;
    segment = static_cast<int>(block % s.segments);
    row = block / s.segments;
    row_head = row * s.heads + head;
    group = head / (s.heads / s.groups);
    first_chunk = segment * s.segment_chunks;
    end_chunk = min(first_chunk + s.segment_chunks, s.chunks);
  }
};

template <typename T>
__device__ inline const T* view_at(const ScanView& view, int64_t row, int head, int position) {
  return static_cast<const T*>(view.data) + row * view.row + head * view.head + position * view.position;
}

// run(TypeOf<T>, integral constant of the state's size), or cudaErrorInvalidValue. Host code.
template <class Run>
cudaError_t by_scan_shape(const ScanShape& s, const Run& run) {
  return by_half_element(s.element, [&](auto type) {
    if (s.state == 128) return run(type, std::integral_constant<int, 128>{});
    if (s.state == 64) return run(type, std::integral_constant<int, 64>{});
    return cudaErrorInvalidValue;
  });
}

template <class Params>
cudaError_t start_scan(void (*kernel)(Params), const Params& p, int64_t blocks, int threads, int bytes,
                       cudaStream_t stream) {
  if (blocks > INT32_MAX || bytes > kScanSharedBytes) return cudaErrorInvalidValue;
  if (bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  return start_early(kernel, dim3(static_cast<unsigned>(blocks)), threads, static_cast<size_t>(bytes), stream, p);
}

}  // namespace hrm::ops::cuda
