#pragma once
// Attention over at most 128 positions of head_dim 64 on Hopper. A persistent block works on one head after another:
// the TMA brings q, k and v of the next heads, wgmma reads them from shared memory, and the next head's q and k are
// rotated while the tensor cores work on this head's scores. No address arithmetic and no fragment loads stand between
// the memory and the tensor cores; what is left is bound by the traffic (read qkv, write out).

#include "ops/cuda/attention.cuh"
#include "ops/cuda/attention.h"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/attention_tiles.cuh"

namespace hrm::ops::cuda::sm90 {

// kN: columns of the scores, at least the length; a size that wgmma has.
template <int kN>
struct AttentionForwardShape {
  static constexpr int kKeyTiles = (kN + 15) / 16;
  static constexpr int kQkBytes = kN * 128;             // q or k; the TMA fills rows past the end with zeros
  static constexpr int kVBytes = kKeyTiles * 16 * 128;  // wgmma adds over 16 keys at a time
  // The results go out through q's rows, 16 from a warp.
  static constexpr int kK = kVBytes;
  static constexpr int kStageBytes = kK + kQkBytes;
  static constexpr int kWarpgroups = kN <= 64 ? 1 : 2;   // 64 queries each
  static constexpr int kUpperRow = kKeyTiles * 16 - 64;  // first row of the upper range
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kBlocks = kWarpgroups == 1 ? 4 : 2;  // on a multiprocessor
  static constexpr int kQkStages = kN > 112 || kWarpgroups == 1 ? 2 : 3;
  static constexpr int kVStages = 2;
  static constexpr int kV = kQkStages * kStageBytes;
  static constexpr int kBarriers = kV + kVStages * kVBytes;
  static constexpr int kLargest = kBarriers + 56;  // the largest result in size, as the bits of a float
  static constexpr int kBytes = kBarriers + 64;
};

// k8: the results, rounded to T, are written in e4m3.
template <typename T, int kN, bool k8>
__global__ void __launch_bounds__(AttentionForwardShape<kN>::kThreads, AttentionForwardShape<kN>::kBlocks)
    attention_forward_kernel(const __grid_constant__ CUtensorMap qk_map, const __grid_constant__ CUtensorMap v_map,
                             AttentionForward p, int items) {
#if HRM_SM90A
  using Shape = AttentionForwardShape<kN>;
  constexpr float kLog2e = 1.4426950408889634f;
  constexpr float kLn2 = 0.6931471805599453f;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint64_t* const qk_full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const v_full = qk_full + Shape::kQkStages;
  int* const block_largest = reinterpret_cast<int*>(shared + Shape::kLargest);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, warpgroup = thread / 128;
  const int g = lane / 4, t = lane % 4;
  const int width = p.heads * 64;
  const int grid = static_cast<int>(gridDim.x);
  const auto load_qk = [&](int item, int stage) {
    if (item >= items) return;
    const HeadPosition from(item, p.heads);
    unsigned char* const to = shared + stage * Shape::kStageBytes;
    barrier_arrive_expect(qk_full + stage, 2 * Shape::kQkBytes);
    tma_load(to, &qk_map, qk_full + stage, from.head * 64, 0, from.batch);
    tma_load(to + Shape::kK, &qk_map, qk_full + stage, from.head * 64 + width, 0, from.batch);
  };
  const auto load_v = [&](int item, int stage) {
    if (item >= items) return;
    const HeadPosition from(item, p.heads);
    barrier_arrive_expect(v_full + stage, Shape::kVBytes);
    tma_load(shared + Shape::kV + stage * Shape::kVBytes, &v_map, v_full + stage, from.head * 64 + 2 * width, 0,
             from.batch);
  };
  HeadPosition at(static_cast<int>(blockIdx.x), p.heads);
  const HeadPosition jump(grid, p.heads);
  // The second warpgroup has less to do with the scores: one of its threads starts the loads.
  const bool loads = thread == Shape::kThreads - 128;
  if (loads) {
    for (int i = 0; i < Shape::kQkStages + Shape::kVStages; ++i) barrier_init(qk_full + i, 1);
    barrier_init_fence();
    if (k8) *block_largest = 0;
  }
  wait_for_earlier();
  if (loads) {
    for (int i = 0; i < Shape::kQkStages; ++i) load_qk(at.item + i * grid, i);
    for (int i = 0; i < Shape::kVStages; ++i) load_v(at.item + i * grid, i);
  }
  __syncthreads();
  RingPosition<Shape::kQkStages> qk, next_qk;
  RingPosition<Shape::kVStages> v;
  const auto rotate = [&] {
    rotate_tiles<T, kN, Shape::kK, Shape::kThreads, false>(
        shared + next_qk.stage * Shape::kStageBytes, p.cos, p.sin, p.length,
        [&] { barrier_wait(qk_full + next_qk.stage, next_qk.parity); });
    next_qk.advance();
    // Ordinary stores above, also those of an item's results; wgmma and the TMA behind the next barrier.
    fence_async_shared();
  };
  rotate();
  __syncthreads();

  bool mirrored = 2 * blockIdx.x >= gridDim.x;
  uint32_t largest_pair = 0;
  float scale_8 = 0;
  if constexpr (k8) scale_8 = *p.out_slot;
  for (; at.item < items; at.advance(jump, p.heads)) {
    unsigned char* const q_tile = shared + qk.stage * Shape::kStageBytes;
    unsigned char* const v_tile = shared + Shape::kV + v.stage * Shape::kVBytes;
    // Two warpgroups have 128 rows, more than there are: their ranges overlap, and the second one leaves out what the
    // first one does. Which of them has the lower range alternates, so that the idle warps, and with them the four
    // schedulers, do.
    const bool upper = Shape::kWarpgroups == 2 && (warpgroup == 1) != mirrored;
    const int base_row = upper ? Shape::kUpperRow : 0;
    const int first_row = base_row + warp % 4 * 16;
    const bool busy =
        first_row < p.length && (warpgroup == 0 || (upper ? first_row >= 64 : first_row < Shape::kUpperRow));
    mirrored = !mirrored;

    float score[kN / 2];
    registers_define(score);
    const uint64_t a = descriptor_k_major(q_tile + base_row * 128);
    const uint64_t b = descriptor_k_major(q_tile + Shape::kK);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Mma<kN, kInputOf<T>>::shared(score, a + 2 * step, b + 2 * step, step > 0);
    }
    wgmma_commit();
    if (at.item + grid < items) rotate();
    wgmma_wait<0>();
    registers_fence(score);

    float inverse[2] = {0, 0};
    uint32_t weight[Shape::kKeyTiles][4];
    registers_clear(weight);
    if (busy) {
      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
        if (n * 8 + 8 > kShortest<kN> && n * 8 + 8 > p.length) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (n * 8 + i % 2 >= p.length - 2 * t) score[4 * n + i] = -INFINITY;
          }
        }
        largest[0] = fmaxf(largest[0], fmaxf(score[4 * n], score[4 * n + 1]));
        largest[1] = fmaxf(largest[1], fmaxf(score[4 * n + 2], score[4 * n + 3]));
      }
      const float scale = p.scale * kLog2e;
      float shift[2], sum[2] = {0, 0};
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
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        inverse[half] = __fdividef(1.0f, sum[half]);
        const int row = first_row + g + 8 * half;
        if (p.lse != nullptr && t == 0 && row < p.length) {
          p.lse[static_cast<int64_t>(at.item) * p.length + row] = (shift[half] + log2f(sum[half])) * kLn2;
        }
      }
    }

    barrier_wait(v_full + v.stage, v.parity);
    float mixed[32];
    registers_define(mixed);
    const uint64_t v_operand = descriptor_mn_major(v_tile, 0);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < Shape::kKeyTiles; ++tile) {
      Mma<64, kInputOf<T>>::template registers<Major::mn>(mixed, weight[tile], v_operand + 128 * tile, tile > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    registers_fence(mixed);
    // The rows of q take the results on their way out; the warpgroup's other warps may still read them as an operand.
    if (warpgroup == 0) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    if (busy) {
      uint32_t rows[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        rows[i] = Pair<T>::pack(mixed[2 * i] * inverse[i % 2], mixed[2 * i + 1] * inverse[i % 2]);
      }
      const int64_t first = static_cast<int64_t>(at.batch) * p.length * width + at.head * 64;
      if constexpr (k8) {
        store_rows_e4m3<kInputOf<T>>(rows, q_tile, first_row, p.length, static_cast<uint8_t*>(p.out) + first, width,
                                     scale_8, largest_pair);
      } else {
        store_rows(rows, q_tile, first_row, p.length, static_cast<T*>(p.out) + first, width);
      }
    }
    fence_async_shared();
    __syncthreads();
    if (loads) {
      load_qk(at.item + Shape::kQkStages * grid, qk.stage);
      load_v(at.item + Shape::kVStages * grid, v.stage);
    }
    qk.advance();
    v.advance();
  }
  if constexpr (k8) {
    const float2 sizes = widen_pair<kInputOf<T>>(largest_pair);
    const int largest = __reduce_max_sync(0xffffffffu, max(__float_as_int(sizes.x), __float_as_int(sizes.y)));
    if (lane == 0) atomicMax(block_largest, largest);
    __syncthreads();
    if (thread == 0) atomicMax(reinterpret_cast<int*>(p.out_slot + 2), *block_largest);
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
