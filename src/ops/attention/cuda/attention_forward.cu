// Attention over at most 128 positions. A block owns one head of one sequence. It reads q, k and v once from the qkv
// projection's output and rotates q and k on the way into shared memory. Scores never leave the registers. The kernel
// is memory-bound (it reads qkv and writes out), so several blocks share a multiprocessor: one loads while another
// multiplies.
#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/attention_start.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// kTiles: number of 16-row tiles. Warp w owns queries 16w to 16w+15.
template <typename T, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kTiles * 32, kTiles <= 6 ? 3 : 2) forward_kernel(AttentionForward p) {
  constexpr int kTileBytes = kTiles * 16 * kHeadDim * 2;
  constexpr int kSteps = kHeadDim / 16;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const q = shared;
  unsigned char* const k = shared + kTileBytes;
  unsigned char* const v = shared + 2 * kTileBytes;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t batch = blockIdx.x / p.heads;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  const int64_t width = static_cast<int64_t>(p.heads) * kHeadDim;
  const T* const from = static_cast<const T*>(p.qkv) + batch * p.length * 3 * width + head * kHeadDim;
  load_async<T, kHeadDim, kTiles>(from + 2 * width, 3 * width, p.length, shared_address(v));
  copy_async_commit();
  load_rotated<T, kHeadDim, kTiles>(from, from + width, 3 * width, p.length, p.cos, p.sin, q, k);
  __syncthreads();

  // Scores of 16 queries against all keys.
  uint32_t q_part[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    load_matrices(q_part[step], shared_address(q) + Tile<kHeadDim>::at(warp * 16 + lane % 16, 2 * step + lane / 16));
  }
  float score[2 * kTiles][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) score[2 * tile][i] = score[2 * tile + 1][i] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t k_part[4];
      load_matrices(k_part, shared_address(k) +
                                Tile<kHeadDim>::at(tile * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
      multiply<T>(score[2 * tile], q_part[step], k_part[0], k_part[1]);
      multiply<T>(score[2 * tile + 1], q_part[step], k_part[2], k_part[3]);
    }
  }

  // Softmax over the row. A row's scores are spread over the four lanes with the same g.
  const int t = lane % 4, g = lane / 4;
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < 2 * kTiles; ++n) {
    if (n * 8 + 8 > p.length) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + 2 * t + i % 2 >= p.length) score[n][i] = -INFINITY;
      }
    }
    largest[0] = fmaxf(largest[0], fmaxf(score[n][0], score[n][1]));
    largest[1] = fmaxf(largest[1], fmaxf(score[n][2], score[n][3]));
  }
  const float scale = p.scale * kLog2e;
  float shift[2], sum[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
    shift[half] = largest[half] * scale;
  }
  uint32_t weight[kTiles][4];
#pragma unroll
  for (int n = 0; n < 2 * kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] = exp2_approx(score[n][i] * scale - shift[i / 2]);
    sum[0] += score[n][0] + score[n][1];
    sum[1] += score[n][2] + score[n][3];
    weight[n / 2][n % 2 * 2] = Pair<T>::pack(score[n][0], score[n][1]);
    weight[n / 2][n % 2 * 2 + 1] = Pair<T>::pack(score[n][2], score[n][3]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
  }
  if (p.lse != nullptr && t == 0) {
    float* const lse = p.lse + static_cast<int64_t>(blockIdx.x) * p.length;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + g + 8 * half;
      if (row < p.length) lse[row] = (shift[half] + log2f(sum[half])) * kLn2;
    }
  }

  copy_async_wait<0>();
  __syncthreads();
  float mixed[kHeadDim / 8][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t v_part[4];
      load_matrices_transposed(v_part,
                               shared_address(v) + Tile<kHeadDim>::at(tile * 16 + lane % 16, 2 * step + lane / 16));
      multiply<T>(mixed[2 * step], weight[tile], v_part[0], v_part[1]);
      multiply<T>(mixed[2 * step + 1], weight[tile], v_part[2], v_part[3]);
    }
  }
  // Only this warp read its rows of q, and they are in its registers.
  T* const to = static_cast<T*>(p.out) + batch * p.length * width + head * kHeadDim;
  store_rows<T, kHeadDim>(mixed, 1 / sum[0], 1 / sum[1], q, warp * 16, p.length, to, width);
}

}  // namespace

cudaError_t launch(const AttentionForward& params, cudaStream_t stream) {
  return start_by_shape(params, [&](auto type, auto head_dim, auto tiles) {
    constexpr int kHeadDim = decltype(head_dim)::value, kTiles = decltype(tiles)::value;
    constexpr int kBytes = 3 * kTiles * 16 * kHeadDim * 2;
    return start_heads(&forward_kernel<TypeIn<decltype(type)>, kHeadDim, kTiles>, params, kTiles * 32, kBytes, stream);
  });
}

}  // namespace hrm::ops::cuda
