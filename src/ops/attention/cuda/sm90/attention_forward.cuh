#pragma once
// Attention over at most 128 positions of head_dim 64 on Hopper. One block per multiprocessor works on one head after
// another, in a ring of stages that the TMA fills. Four warps only rotate q and k. Each always has the same rows, so it
// keeps their table entries in registers. Four warpgroups have 64 queries each, so two of them cover a head of more
// than 64 positions. They wait only for the stages: the softmax of one overlaps with the tensor-core work of another.
// The kernel is memory-bound (it reads qkv and writes out). It goes through the heads from last to first (see
// launch.cuh).

#include <algorithm>

#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda::sm90 {

// kN: columns of the scores, at least the length, and a size that wgmma supports.
template <int kN>
struct AttentionForwardShape {
  static constexpr int kKeyTiles = (kN + 15) / 16;
  static constexpr int kQkBytes = kN * 128;             // q or k; the TMA fills rows past the end with zeros
  static constexpr int kVBytes = kKeyTiles * 16 * 128;  // wgmma sums over 16 keys at a time
  // Results are staged in q's rows, 16 per warp.
  static constexpr int kK = kVBytes;
  static constexpr int kV = kK + kQkBytes;
  static constexpr int kStageBytes = kV + kVBytes;
  static constexpr int kParts = kN <= 64 ? 1 : 2;        // warpgroups per head, 64 queries each
  static constexpr int kUpperRow = kKeyTiles * 16 - 64;  // first row of the upper range
  static constexpr int kConsumers = 4;                   // warpgroups
  static constexpr int kGroups = kConsumers / kParts;    // heads in progress at a time
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kStages = std::min((227 * 1024 - 272) / kStageBytes, 8);  // limited by a block's shared memory
  static_assert(kGroups < kStages);
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr int kLargest = kBarriers + 4 * 8 * kStages;  // the largest magnitude, as the bits of a float
  static constexpr int kBytes = kLargest + 16;
};

// k8: write the results, rounded to T, in e4m3.
template <typename T, int kN, bool k8>
__global__ void __launch_bounds__(AttentionForwardShape<kN>::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap qk_map, const __grid_constant__ CUtensorMap v_map,
                             AttentionForward p, int items) {
#if HRM_SM90A
  using Shape = AttentionForwardShape<kN>;
  using Ring = RingPosition<Shape::kStages>;
  constexpr float kLn2 = 0.6931471805599453f;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint64_t* const qk_full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const v_full = qk_full + Shape::kStages;
  uint64_t* const rotated = v_full + Shape::kStages;
  uint64_t* const empty = rotated + Shape::kStages;
  int* const block_largest = reinterpret_cast<int*>(shared + Shape::kLargest);

  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // Broadcast from one lane, so the compiler knows that the value is uniform in a warp and uses uniform registers.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), warpgroup = warp / 4;
  const int width = p.heads * 64;
  const int grid = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(qk_full + i, 1);
      barrier_init(v_full + i, 1);
      barrier_init(rotated + i, 4);
      barrier_init(empty + i, 4 * Shape::kParts);
    }
    barrier_init_fence();
    if (k8) *block_largest = 0;
    tma_prefetch_map(&qk_map);
    tma_prefetch_map(&v_map);
  }
  __syncthreads();
  wait_for_earlier();

  if (warpgroup == Shape::kConsumers) {
    const int part = warp % 4;
    const bool loads = part == 3 && lane == 0;  // in a warp with no more rows than the others
    const HeadPosition jump(grid, p.heads);
    HeadPosition next(items - 1 - first, p.heads);  // to load next
    Ring filled, ring;
    // Fills every free stage. Waits only for the stage of `item`, which this warp needs next.
    const auto fill = [&](int item) {
      while (loads && next.item >= 0) {
        uint64_t* const free = empty + filled.stage;
        if (next.item >= items - 1 - item) {
          barrier_wait(free, filled.parity ^ 1);
        } else if (!barrier_test(free, filled.parity ^ 1)) {
          break;
        }
        unsigned char* const to = shared + filled.stage * Shape::kStageBytes;
        uint64_t* full = qk_full + filled.stage;
        barrier_arrive_expect(full, 2 * Shape::kQkBytes);
        tma_load(to, &qk_map, full, next.head * 64, 0, next.batch);
        tma_load(to + Shape::kK, &qk_map, full, next.head * 64 + width, 0, next.batch);
        full = v_full + filled.stage;
        barrier_arrive_expect(full, Shape::kVBytes);
        tma_load(to + Shape::kV, &v_map, full, next.head * 64 + 2 * width, 0, next.batch);
        next.retreat(jump, p.heads);
        filled.advance();
      }
      __syncwarp();
    };
    fill(first);
    Rotation<T, kN, Shape::kK> rotation;
    rotation.load(p.cos, p.sin, p.length, part, lane);
    for (int item = first; item < items; item += grid, ring.advance()) {
      fill(item);
      barrier_wait(qk_full + ring.stage, ring.parity);
      if (p.cos != nullptr) rotation.turn(shared + ring.stage * Shape::kStageBytes);
      // Generic stores before, wgmma after the barrier.
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(rotated + ring.stage);
    }
    return;
  }

  const int group = warpgroup / Shape::kParts;
  HeadPosition at(items - 1 - first - group * grid, p.heads);
  const HeadPosition jump(Shape::kGroups * grid, p.heads);
  Ring ring{group, 0};
  uint32_t largest_pair = 0;
  float scale_8 = 0;
  if constexpr (k8) scale_8 = *p.out_slot;
  for (int round = 2 * group + first; at.item >= 0; at.retreat(jump, p.heads), ++round) {
    unsigned char* const q_tile = shared + ring.stage * Shape::kStageBytes;
    // Two warpgroups have 128 rows, more than the sequence. Their ranges overlap, and one warpgroup skips the rows that
    // the other computes. Which one skips, and which one has the lower range, alternates. This balances the idle warps
    // over the four schedulers.
    const bool all = Shape::kParts == 1 || (warpgroup & 1) == (round & 1);
    const bool upper = Shape::kParts == 2 && all == ((round & 2) != 0);
    const int base_row = upper ? Shape::kUpperRow : 0;
    const int first_row = base_row + warp % 4 * 16;
    const bool busy = first_row < p.length && (all || (upper ? first_row >= 64 : first_row < Shape::kUpperRow));

    float score[kN / 2];
    registers_define(score);
    const uint64_t a = descriptor_k_major(q_tile + base_row * 128);
    const uint64_t b = descriptor_k_major(q_tile + Shape::kK);
    barrier_wait(rotated + ring.stage, ring.parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Mma<kN, kInputOf<T>>::shared(score, descriptor_plus(a, 2 * step), descriptor_plus(b, 2 * step), step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    registers_fence(score);

    float shift[2] = {0, 0}, sum[2] = {0, 0};
    uint32_t weight[Shape::kKeyTiles][4];
    if (busy) {
      softmax_weights<T>(score, lane, p.length, p.scale, weight, shift, sum);
    } else {
      registers_clear(weight);
    }

    barrier_wait(v_full + ring.stage, ring.parity);
    // The rows of q stage the results. The warpgroup's other warps have already read them as an operand, and its warps
    // start the product together anyway.
    named_barrier(1 + warpgroup, 128);
    float mixed[32];
    registers_define(mixed);
    const uint64_t v_operand = descriptor_mn_major(q_tile + Shape::kV, 0);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < Shape::kKeyTiles; ++tile) {
      Mma<64, kInputOf<T>>::template registers<Major::mn>(mixed, weight[tile], descriptor_plus(v_operand, 128 * tile),
                                                          tile > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    }
    wgmma_wait<0>();
    registers_fence(mixed);

    const auto release = [&] {
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + ring.stage);
    };
    if (busy) {
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) inverse[half] = __fdividef(1.0f, sum[half]);
      uint32_t rows[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        rows[i] = Pair<T>::pack(mixed[2 * i] * inverse[i % 2], mixed[2 * i + 1] * inverse[i % 2]);
      }
      const int64_t to = static_cast<int64_t>(at.batch) * p.length * width + at.head * 64;
      if constexpr (k8) {
        store_rows_e4m3<kInputOf<T>>(rows, q_tile, first_row, p.length, static_cast<uint8_t*>(p.out) + to, width,
                                     scale_8, largest_pair, release);
      } else {
        store_rows(rows, q_tile, first_row, p.length, static_cast<T*>(p.out) + to, width, release);
      }
      const int half = lane % 4, row = first_row + lane / 4 + 8 * half;
      if (p.lse != nullptr && half < 2 && row < p.length) {
        const float from = half == 0 ? shift[0] : shift[1], size = half == 0 ? sum[0] : sum[1];
        p.lse[static_cast<int64_t>(at.item) * p.length + row] = (from + log2f(size)) * kLn2;
      }
    } else {
      release();
    }
    for (int i = 0; i < Shape::kGroups; ++i) ring.advance();
  }
  if constexpr (k8) {
    const float2 sizes = widen_pair<kInputOf<T>>(largest_pair);
    const int largest = __reduce_max_sync(0xffffffffu, max(__float_as_int(sizes.x), __float_as_int(sizes.y)));
    if (lane == 0) atomicMax(block_largest, largest);
    named_barrier(1 + Shape::kConsumers, Shape::kConsumers * 128);
    if (thread == 0) atomicMax(reinterpret_cast<int*>(p.out_slot + 2), *block_largest);
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
