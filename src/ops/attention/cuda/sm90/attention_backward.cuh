#pragma once
// The backward pass of attention over at most 128 positions of head_dim 64 on Hopper, the counterpart of
// attention_forward.cuh. A warpgroup owns 64 queries for P, dS and dQ = dS K. It owns 64 keys for dV = P^T dO and dK =
// dS^T Q, for which P and dS pass through shared memory. The softmax gradient needs the sum of grad_out * out over the
// dimensions. This equals the sum of P * dP over the keys, so `out` is not read. No atomics: every sum has one owner
// and a fixed order.

#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda::sm90 {

// kN: columns of the scores, at least the length, and a size that wgmma supports.
template <int kN>
struct AttentionBackwardShape {
  static constexpr int kTiles = (kN + 15) / 16;
  static constexpr int kRows = kTiles * 16;  // the TMA fills rows past the end with zeros
  static constexpr int kTileBytes = kRows * 128;
  static constexpr int kWarpgroups = kN <= 64 ? 1 : 2;
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kUpperRow = kRows - 64;
  static constexpr int kBlocks = kWarpgroups == 1 ? 4 : 2;  // per multiprocessor
  // One stage: a second one would leave too little L1 cache for the rotation table.
  static constexpr int kQ = 0, kK = kTileBytes, kV = 2 * kTileBytes, kGradOut = 3 * kTileBytes;
  // P: one row per query, 64 keys per tile. dS: the first 64 keys reuse v's tile, which is not read any more by then.
  static constexpr int kP = 4 * kTileBytes;
  static constexpr int kScore = kP + kWarpgroups * kTileBytes;
  static constexpr int kBarriers = kScore + kTileBytes;
  static constexpr int kBytes = kBarriers + 64;
};

// The rotation of eight neighbouring dimensions in one half of a row.
struct Angles {
  float4 cosine[2], sine[2];

  __device__ void load(const float* cos, const float* sin, int row, int t) {
    if (cos == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      cosine[i] = load_table(cos + row * 32 + t * 8 + 4 * i);
      sine[i] = load_table(sin + row * 32 + t * 8 + 4 * i);
    }
  }
};

// Scales a warp's 16 rows of q's or k's gradient, rotates them back, rounds and writes them. The rows have the permuted
// columns of rotate_tiles. Each lane writes 16 bytes of each half of a row.
template <typename T>
__device__ inline void store_turned_back(const float (&grad)[32], float scale, const float* cos, const float* sin,
                                         int first_row, int length, T* to, int row_stride) {
  const int lane = fresh_lane(), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + g + 8 * half;
    if (row >= length) continue;
    Angles angles;
    angles.load(cos, sin, row, t);
    const float* const c = reinterpret_cast<const float*>(angles.cosine);
    const float* const s = reinterpret_cast<const float*>(angles.sine);
    uint32_t low[4], high[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float2 a = {grad[4 * n + 2 * half] * scale, grad[4 * n + 2 * half + 1] * scale};
      float2 b = {grad[4 * n + 16 + 2 * half] * scale, grad[4 * n + 16 + 2 * half + 1] * scale};
      if (cos != nullptr) {
        turn(a.x, b.x, c[2 * n], -s[2 * n]);
        turn(a.y, b.y, c[2 * n + 1], -s[2 * n + 1]);
      }
      low[n] = Pair<T>::pack(a.x, a.y);
      high[n] = Pair<T>::pack(b.x, b.y);
    }
    T* const at = to + row * row_stride + t * 8;
    store_once(at, make_uint4(low[0], low[1], low[2], low[3]));
    store_once(at + 32, make_uint4(high[0], high[1], high[2], high[3]));
  }
}

template <typename T, int kN>
__global__ void __launch_bounds__(AttentionBackwardShape<kN>::kThreads, AttentionBackwardShape<kN>::kBlocks)
    attention_backward_kernel(const __grid_constant__ CUtensorMap qkv_map, const __grid_constant__ CUtensorMap grad_map,
                              AttentionBackward p, int items) {
#if HRM_SM90A
  using Shape = AttentionBackwardShape<kN>;
  constexpr Input kInput = kInputOf<T>;
  constexpr float kLog2e = 1.4426950408889634f;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const q_tile = shared + Shape::kQ;
  unsigned char* const k_tile = shared + Shape::kK;
  unsigned char* const v_tile = shared + Shape::kV;
  unsigned char* const grad_tile = shared + Shape::kGradOut;
  unsigned char* const p_tile = shared + Shape::kP;
  unsigned char* const score_tile = shared + Shape::kScore;
  uint64_t* const qk_full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const v_full = qk_full + 1;  // v and grad_out, needed later

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, warpgroup = thread / 128;
  const int width = p.heads * 64;
  const int grid = static_cast<int>(gridDim.x);
  const auto load = [&](int item) {
    if (item >= items) return;
    const HeadPosition from(item, p.heads);
    barrier_arrive_expect(qk_full, 2 * Shape::kTileBytes);
    tma_load(q_tile, &qkv_map, qk_full, from.head * 64, 0, from.batch);
    tma_load(k_tile, &qkv_map, qk_full, from.head * 64 + width, 0, from.batch);
    barrier_arrive_expect(v_full, 2 * Shape::kTileBytes);
    tma_load(v_tile, &qkv_map, v_full, from.head * 64 + 2 * width, 0, from.batch);
    tma_load(grad_tile, &grad_map, v_full, from.head * 64, 0, from.batch);
  };
  HeadPosition at(static_cast<int>(blockIdx.x), p.heads);
  const HeadPosition jump(grid, p.heads);
  const bool loads = thread == Shape::kThreads - 32;  // in a warp with few keys
  if (loads) {
    barrier_init(qk_full, 1);
    barrier_init(v_full, 1);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier();
  if (loads) load(at.item);

  const float scale = p.scale * kLog2e;
  uint32_t parity = 0;
  bool mirrored = 2 * blockIdx.x >= gridDim.x;
  for (; at.item < items; at.advance(jump, p.heads)) {
    const int lane = fresh_lane(), g = lane / 4, t = lane % 4;
    // As in the forward pass, two ranges of 64 queries overlap, and the warpgroups alternate.
    const bool upper = Shape::kWarpgroups == 2 && (warpgroup == 1) != mirrored;
    const int base_row = upper ? Shape::kUpperRow : 0;
    const int first_row = base_row + warp % 4 * 16;
    // Includes queries past the end: P and dS are operands, so all of their rows must be finite.
    const bool busy = warpgroup == 0 || (upper ? first_row >= 64 : first_row < Shape::kUpperRow);
    mirrored = !mirrored;

    // Queries past the end get the weight exp(0) and a zero gradient, so they add nothing.
    float lse[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + g + 8 * half;
      if (row < p.length) lse[half] = __ldg(p.lse + static_cast<int64_t>(at.item) * p.length + row) * kLog2e;
    }
    rotate_tiles<T, Shape::kRows, Shape::kTileBytes, Shape::kThreads>(q_tile, p.cos, p.sin, p.length,
                                                                      [&] { barrier_wait(qk_full, parity); });
    fence_async_shared();
    __syncthreads();

    uint32_t weight[Shape::kTiles][4], grad_score[Shape::kTiles][4];
    {
      float score[kN / 2];
      registers_define(score);
      const uint64_t q_operand = descriptor_k_major(q_tile + base_row * 128);
      const uint64_t k_operand = descriptor_k_major(k_tile);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<kN, kInput>::shared(score, q_operand + 2 * step, k_operand + 2 * step, step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      registers_fence(score);
      registers_clear(weight);
      if (busy) {
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
          float e[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) e[i] = exp2_approx(fmaf(score[4 * n + i], scale, -lse[i / 2]));
          if (n * 8 + 8 > kShortest<kN> && n * 8 + 8 > p.length) {
            // Keys past the end get zero weight, whatever the other scores are.
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (n * 8 + i % 2 >= p.length - 2 * t) e[i] = 0;
            }
          }
          weight[n / 2][n % 2 * 2] = Pair<T>::pack(e[0], e[1]);
          weight[n / 2][n % 2 * 2 + 1] = Pair<T>::pack(e[2], e[3]);
        }
      }
    }
    {
      // Uses the weights as rounded for dV, which takes 24 registers instead of 48.
      float grad_weight[kN / 2];
      registers_define(grad_weight);
      const uint64_t grad_operand = descriptor_k_major(grad_tile + base_row * 128);
      const uint64_t v_operand = descriptor_k_major(v_tile);
      barrier_wait(v_full, parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<kN, kInput>::shared(grad_weight, grad_operand + 2 * step, v_operand + 2 * step, step > 0);
      }
      wgmma_commit();
      if (busy) {
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          store_matrices(shared_address(p_tile) + tile / 4 * Shape::kTileBytes +
                             Tile<64>::at(first_row + lane % 16, tile % 4 * 2 + lane / 16),
                         weight[tile]);
        }
      }
      wgmma_wait<0>();
      registers_fence(grad_weight);
      registers_clear(grad_score);
      if (busy) {
        float delta[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 w = Pair<T>::unpack(weight[n / 2][n % 2 * 2 + half]);
            delta[half] = fmaf(w.x, grad_weight[4 * n + 2 * half], delta[half]);
            delta[half] = fmaf(w.y, grad_weight[4 * n + 2 * half + 1], delta[half]);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          delta[half] += __shfl_xor_sync(0xffffffffu, delta[half], 1);
          delta[half] += __shfl_xor_sync(0xffffffffu, delta[half], 2);
        }
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 w = Pair<T>::unpack(weight[n / 2][n % 2 * 2 + half]);
            grad_score[n / 2][n % 2 * 2 + half] =
                Pair<T>::pack(w.x * (grad_weight[4 * n + 2 * half] - delta[half]),
                              w.y * (grad_weight[4 * n + 2 * half + 1] - delta[half]));
          }
        }
      }
    }
    fence_async_shared();
    __syncthreads();  // P is complete, v is free

    const int chunk = upper ? 1 : 0;  // of 64 keys
    const int first_key = chunk * 64 + warp % 4 * 16;
    float grad_q[32], grad_v[32];
    registers_define(grad_q);
    registers_define(grad_v);
    const uint64_t k_operand = descriptor_mn_major(k_tile, 0);
    const uint64_t weight_operand = descriptor_mn_major(p_tile + chunk * Shape::kTileBytes, 0);
    const uint64_t grad_operand = descriptor_mn_major(grad_tile, 0);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      Mma<64, kInput>::template registers<Major::mn>(grad_q, grad_score[tile], k_operand + 128 * tile, tile > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      Mma<64, kInput>::template shared<Major::mn, Major::mn>(grad_v, weight_operand + 128 * tile,
                                                             grad_operand + 128 * tile, tile > 0);
    }
    wgmma_commit();
    if (busy) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        store_matrices(shared_address(tile < 4 ? v_tile : score_tile) +
                           Tile<64>::at(first_row + lane % 16, tile % 4 * 2 + lane / 16),
                       grad_score[tile]);
      }
    }
    fence_async_shared();
    __syncthreads();  // dS is complete
    T* const to = static_cast<T*>(p.grad_qkv) + static_cast<int64_t>(at.batch) * p.length * 3 * width + at.head * 64;
    wgmma_wait<1>();
    registers_fence(grad_q);
    if (busy) store_turned_back(grad_q, p.scale, p.cos, p.sin, first_row, p.length, to, 3 * width);
    const uint64_t score_operand = descriptor_mn_major(chunk == 0 ? v_tile : score_tile, 0);
    const uint64_t q_operand = descriptor_mn_major(q_tile, 0);
    float grad_k[32];
    registers_define(grad_k);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      Mma<64, kInput>::template shared<Major::mn, Major::mn>(grad_k, score_operand + 128 * tile, q_operand + 128 * tile,
                                                             tile > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    registers_fence(grad_v);
    uint32_t v_rows[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) v_rows[i] = Pair<T>::pack(grad_v[2 * i], grad_v[2 * i + 1]);
    wgmma_wait<0>();
    registers_fence(grad_k);
    __syncthreads();  // all reads of the tiles are done
    if (loads) load(at.item + grid);
    if (first_key < p.length) {
      store_turned_back(grad_k, p.scale, p.cos, p.sin, first_key, p.length, to + width, 3 * width);
      store_rows(v_rows, p_tile, first_key, p.length, to + 2 * width, 3 * width, [] {});
    }
    parity ^= 1;
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
