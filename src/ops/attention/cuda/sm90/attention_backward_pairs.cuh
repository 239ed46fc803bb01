#pragma once
// A variant of attention_backward.cuh for the lengths where it is faster (see attention_backward.cu), with the same
// bits. As in the forward pass, one block per multiprocessor has four warps that rotate q and k. A pair of warpgroups
// works on each head; its two warpgroups wait only for each other and for the tiles.

#include <algorithm>

#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/sm90/attention_backward.cuh"
#include "ops/attention/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda::sm90 {

// kN: columns of the scores, at least the length, and a size that wgmma supports.
template <int kN>
struct AttentionBackwardPairsShape {
  static constexpr int kTiles = (kN + 15) / 16;
  static constexpr int kRows = kTiles * 16;  // the TMA fills rows past the end with zeros
  static constexpr int kTileBytes = kRows * 128;
  static_assert(kN > 64);
  static constexpr int kParts = 2;              // warpgroups per head
  static constexpr int kUpperRow = kRows - 64;  // first row of the upper range
  // Heads in progress at a time. With 128 columns, two pairs of warpgroups would run out of registers.
  static constexpr int kGroups = kN > 104 ? 1 : 2;
  static constexpr int kConsumers = kGroups * kParts;  // warpgroups
  static constexpr int kThreads = (kConsumers + 1) * 128;
  // A group's own tiles. P: one row per query, 64 keys per tile. dS: the first 64 keys reuse v's tile, which is not
  // read any more by then.
  static constexpr int kScore = kParts * kTileBytes;
  static constexpr int kGroupBytes = (kParts + 1) * kTileBytes;
  // A ring of pairs of tiles: q and k of a head, then v and grad_out, which are needed later.
  static constexpr int kPairBytes = 2 * kTileBytes;
  static constexpr int kPairs = std::min((227 * 1024 - 512 - kGroups * kGroupBytes) / kPairBytes, 12);
  // The largest number of heads whose q and k can be in the ring. Heads have their own ring of barriers, because those
  // of the tile ring are ambiguous: with an odd number of pairs, a slot alternates between q and k and v and grad_out.
  // A waiter for only one kind sees every second round, whose parities are equal, and could take an old round for the
  // current one.
  static constexpr int kHeads = (kPairs + 1) / 2;
  static_assert(2 * kGroups <= kPairs);
  static constexpr int kGroupTiles = kPairs * kPairBytes;
  static constexpr int kBarriers = kGroupTiles + kGroups * kGroupBytes;
  static constexpr int kBytes = kBarriers + 8 * (kPairs + 3 * kHeads + 3 * kGroups);
  static_assert(kBytes <= 227 * 1024);
};

// Rotates q and k of one head after another by their positions, in place. Like Rotation of attention_tiles.cuh, except
// that dimension 8t + 2n + e of a half (t, n < 4, e < 2) moves to column 8n + 2t + e. There, a product's accumulators
// give lane t eight neighbouring dimensions. The scores are sums over the dimensions, so they do not change. Rows from
// `length` on are zeros and stay zeros.
template <typename T, int kRows, int kDistance>
class PermutingRotation {
 public:
  __device__ void load(const float* cos, const float* sin, int length, int warp, int lane) {
    row_ = (warp >> 1) * 8 + (warp & 1) * 2 + (lane >> 3 & 1) * 4 + (lane >> 4);
    const uint32_t turned = static_cast<uint32_t>(row_ & 7) << 4;
    from_ = row_ * 128 + ((lane >> 1 & 3) << 4 ^ turned) + (lane & 1) * 8;
    to_ = row_ * 128 + ((lane & 1) << 5 ^ turned) + (lane >> 1 & 3) * 4;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      cosine_[round] = make_float4(1, 1, 1, 1), sine_[round] = make_float4(0, 0, 0, 0);
      if (cos == nullptr) continue;
      const int at = min(row_ + 16 * round, length - 1) * 32 + (lane & 7) * 4;
      cosine_[round] = load_table(cos + at);
      sine_[round] = load_table(sin + at);
    }
  }

  __device__ void turn(unsigned char* q, int length) const {
#pragma unroll
    for (int first = 0; first < kRounds; first += kBatch) {
      uint2 low[kBatch][2], high[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch && first + i < kRounds; ++i) {
        if (row_ + (first + i) * 16 < length) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            read(q + (first + i) * 2048 + part * kDistance, low[i][part], high[i][part]);
          }
        }
      }
      __syncwarp();  // the other lanes of these rows have read
#pragma unroll
      for (int i = 0; i < kBatch && first + i < kRounds; ++i) {
        if (row_ + (first + i) * 16 < length) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            turn_four<T>(low[i][part], high[i][part], cosine_[first + i], sine_[first + i]);
            write(q + (first + i) * 2048 + part * kDistance, low[i][part], high[i][part]);
          }
        }
      }
    }
  }

 private:
  static constexpr int kRounds = (kRows + 15) / 16;  // of 16 rows per four warps
  static constexpr int kBatch = kRounds <= 6 ? 2 : 1;

  __device__ void read(const unsigned char* tile, uint2& low, uint2& high) const {
    low = *reinterpret_cast<const uint2*>(tile + from_);
    high = *reinterpret_cast<const uint2*>(tile + (from_ ^ 64));
  }
  __device__ void write(unsigned char* tile, const uint2& low, const uint2& high) const {
    *reinterpret_cast<uint32_t*>(tile + to_) = low.x;
    *reinterpret_cast<uint32_t*>(tile + (to_ ^ 16)) = low.y;
    *reinterpret_cast<uint32_t*>(tile + (to_ ^ 64)) = high.x;
    *reinterpret_cast<uint32_t*>(tile + (to_ ^ 80)) = high.y;
  }

  int row_;
  uint32_t from_, to_;
  float4 cosine_[kRounds], sine_[kRounds];
};

// Rounds and writes a warp's 16 rows of v's gradient. The four lanes of a row exchange pairs of columns, so each has
// eight neighbouring columns of each half.
template <typename T>
__device__ inline void store_exchanged(const float (&grad)[32], int first_row, int length, T* to, int row_stride) {
  const int lane = fresh_lane(), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + g + 8 * half;
    T* const at = to + row * row_stride + t * 8;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        x[n] = Pair<T>::pack(grad[16 * part + 4 * n + 2 * half], grad[16 * part + 4 * n + 2 * half + 1]);
      }
      // A 4 x 4 transpose: first within 2 x 2 blocks, then of the blocks.
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const bool second = (t & step) != 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t &a = x[step == 1 ? 2 * i : i], &b = x[step == 1 ? 2 * i + 1 : i + 2];
          const uint32_t other = __shfl_xor_sync(0xffffffffu, second ? a : b, step);
          (second ? a : b) = other;
        }
      }
      if (row < length) store_once(at + 32 * part, make_uint4(x[0], x[1], x[2], x[3]));
    }
  }
}

template <typename T, int kN>
__global__ void __launch_bounds__(AttentionBackwardPairsShape<kN>::kThreads, 1)
    attention_backward_pairs_kernel(const __grid_constant__ CUtensorMap qkv_map,
                                    const __grid_constant__ CUtensorMap grad_map, AttentionBackward p, int items) {
#if HRM_SM90A
  using Shape = AttentionBackwardPairsShape<kN>;
  using Ring = RingPosition<Shape::kPairs>;
  using HeadRing = RingPosition<Shape::kHeads>;
  constexpr Input kInput = kInputOf<T>;
  constexpr float kLog2e = 1.4426950408889634f;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint64_t* const empty = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const qk_full = empty + Shape::kPairs;
  uint64_t* const v_full = qk_full + Shape::kHeads;  // and grad_out
  uint64_t* const rotated = v_full + Shape::kHeads;
  // Per group: v has been read; P and dS are complete; P and dS have been read.
  uint64_t* const v_read = rotated + Shape::kHeads;
  uint64_t* const scores_full = v_read + Shape::kGroups;
  uint64_t* const scores_empty = scores_full + Shape::kGroups;

  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // Broadcast from one lane, so the compiler knows that the value is uniform in a warp and uses uniform registers.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), warpgroup = warp / 4;
  const int width = p.heads * 64;
  const int grid = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Shape::kPairs; ++i) barrier_init(empty + i, 4 * Shape::kParts);
    for (int i = 0; i < Shape::kHeads; ++i) {
      barrier_init(qk_full + i, 1);
      barrier_init(v_full + i, 1);
      barrier_init(rotated + i, 4);
    }
    for (int i = 0; i < 3 * Shape::kGroups; ++i) barrier_init(v_read + i, 4 * Shape::kParts);
    barrier_init_fence();
    tma_prefetch_map(&qkv_map);
    tma_prefetch_map(&grad_map);
  }
  __syncthreads();
  wait_for_earlier();

  if (warpgroup == Shape::kConsumers) {
    const int part = warp % 4;
    const bool loads = part == 3 && lane == 0;  // in a warp with no more rows than the others
    int next = first;                           // to load next
    bool second = false;                        // load its v and grad_out next
    Ring filled, ring;
    HeadRing filled_head, head;
    // Fills every free pair of tiles. Waits only for a pair that q and k of `item`, which this warp needs next,
    // require, or that becomes free together with those.
    const auto fill = [&](int item) {
      while (loads && next < items) {
        uint64_t* const free = empty + filled.stage;
        if (next < item || (next == item && (!second || Shape::kPairs % 2 == 0))) {
          barrier_wait(free, filled.parity ^ 1);
        } else if (!barrier_test(free, filled.parity ^ 1)) {
          break;
        }
        unsigned char* const to = shared + filled.stage * Shape::kPairBytes;
        uint64_t* const full = (second ? v_full : qk_full) + filled_head.stage;
        const HeadPosition from(next, p.heads);
        const int column = from.head * 64;
        barrier_arrive_expect(full, Shape::kPairBytes);
        if (second) {
          tma_load(to, &qkv_map, full, column + 2 * width, 0, from.batch);
          tma_load(to + Shape::kTileBytes, &grad_map, full, column, 0, from.batch);
          next += grid;
          filled_head.advance();
        } else {
          tma_load(to, &qkv_map, full, column, 0, from.batch);
          tma_load(to + Shape::kTileBytes, &qkv_map, full, column + width, 0, from.batch);
        }
        second = !second;
        filled.advance();
      }
      __syncwarp();
    };
    fill(first);
    PermutingRotation<T, Shape::kRows, Shape::kTileBytes> rotation;
    rotation.load(p.cos, p.sin, p.length, part, lane);
    for (int item = first; item < items; item += grid) {
      fill(item);
      barrier_wait(qk_full + head.stage, head.parity);
      rotation.turn(shared + ring.stage * Shape::kPairBytes, p.length);
      // Generic stores before, wgmma after the barrier.
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(rotated + head.stage);
      ring.advance(2);
      head.advance();
    }
    fill(items);
    return;
  }

  const int group = warpgroup / Shape::kParts;
  unsigned char* const p_tile = shared + Shape::kGroupTiles + group * Shape::kGroupBytes;
  unsigned char* const score_tile = p_tile + Shape::kScore;
  const auto arrive = [&](uint64_t* barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  HeadPosition at(first + group * grid, p.heads);
  const HeadPosition jump(Shape::kGroups * grid, p.heads);
  Ring ring;  // of q and k
  ring.advance(2 * group);
  HeadRing head{group, 0};
  const float scale = p.scale * kLog2e;

  // As in the forward pass, two ranges of 64 queries overlap, and the warpgroups alternate.
  int round = 2 * group + first;
  struct Range {
    bool upper, busy;
    int base_row, first_row;
  };
  const auto range_of = [&](int round) {
    Range range;
    const bool all = (warpgroup & 1) == (round & 1);
    range.upper = all == ((round & 2) != 0);
    range.base_row = range.upper ? Shape::kUpperRow : 0;
    range.first_row = range.base_row + warp % 4 * 16;
    // Includes queries past the end: P and dS are operands, so all of their rows must be finite.
    range.busy = all || (range.upper ? range.first_row >= 64 : range.first_row < Shape::kUpperRow);
    return range;
  };
  // Queries past the end get the weight exp(0) and a zero gradient, so they add nothing.
  float lse[2];
  const auto load_lse = [&](int item, int round) {
    const int row = range_of(round).first_row + fresh_lane() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse[half] = 0;
      if (item < items && row + 8 * half < p.length) {
        lse[half] = load_once(p.lse + static_cast<int64_t>(item) * p.length + row + 8 * half);
      }
    }
  };
  load_lse(at.item, round);

  for (uint32_t parity = 0; at.item < items; at.advance(jump, p.heads), ++round, parity ^= 1) {
    const Range range = range_of(round);
    const bool upper = range.upper, busy = range.busy;
    const int base_row = range.base_row, first_row = range.first_row;
    Ring second = ring;  // of v and grad_out
    second.advance();
    unsigned char* const q_tile = shared + ring.stage * Shape::kPairBytes;
    unsigned char* const v_tile = shared + second.stage * Shape::kPairBytes;
    unsigned char* const k_tile = q_tile + Shape::kTileBytes;
    unsigned char* const grad_tile = v_tile + Shape::kTileBytes;
    // A lane's row of a warp's part of P or dS, and the first of its two chunks. Tiles start at multiples of 1024 bytes
    // and first_row is a multiple of 16, so only the lane decides how a row is permuted.
    const auto score_at = [&](unsigned char* tile) {
      const int lane = fresh_lane();
      return shared_address(tile) + (first_row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    };

    uint32_t weight[Shape::kTiles][4];  // P, later dS
    {
      float score[kN / 2];
      registers_define(score);
      const uint64_t q_operand = descriptor_k_major(q_tile + base_row * 128);
      const uint64_t k_operand = descriptor_k_major(k_tile);
      barrier_wait(rotated + head.stage, head.parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<kN, kInput>::shared(score, descriptor_plus(q_operand, 2 * step), descriptor_plus(k_operand, 2 * step),
                                step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      registers_fence(score);
      if (busy) {
        const int t = fresh_lane() % 4;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
          float e[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) e[i] = exp2_approx(fmaf(score[4 * n + i], scale, -lse[i / 2] * kLog2e));
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
        if constexpr (kN % 16 != 0) weight[Shape::kTiles - 1][2] = weight[Shape::kTiles - 1][3] = 0;
      } else {
        registers_clear(weight);
      }
    }
    {
      // Uses the weights as rounded for dV, which takes 24 registers instead of 48.
      float grad_weight[kN / 2];
      registers_define(grad_weight);
      const uint64_t grad_operand = descriptor_k_major(grad_tile + base_row * 128);
      const uint64_t v_operand = descriptor_k_major(v_tile);
      barrier_wait(v_full + head.stage, head.parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<kN, kInput>::shared(grad_weight, descriptor_plus(grad_operand, 2 * step),
                                descriptor_plus(v_operand, 2 * step), step > 0);
      }
      wgmma_commit();
      if (busy) {
        barrier_wait(scores_empty + group, parity ^ 1);
        const uint32_t to = score_at(p_tile);
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          store_matrices((to ^ tile % 4 << 5) + tile / 4 * Shape::kTileBytes, weight[tile]);
        }
      }
      wgmma_wait<0>();
      registers_fence(grad_weight);
      arrive(v_read + group);
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
            uint32_t& pair = weight[n / 2][n % 2 * 2 + half];
            const float2 w = Pair<T>::unpack(pair);
            pair = Pair<T>::pack(w.x * (grad_weight[4 * n + 2 * half] - delta[half]),
                                 w.y * (grad_weight[4 * n + 2 * half + 1] - delta[half]));
          }
        }
      }
    }

    T* const to = static_cast<T*>(p.grad_qkv) + static_cast<int64_t>(at.batch) * p.length * 3 * width + at.head * 64;
    {
      float grad_q[32];
      registers_define(grad_q);
      const uint64_t k_operand = descriptor_mn_major(k_tile, 0);
      wgmma_fence();
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        Mma<64, kInput>::template registers<Major::mn>(grad_q, weight[tile], descriptor_plus(k_operand, 128 * tile),
                                                       tile > 0);
      }
      wgmma_commit();
      if (busy) {
        barrier_wait(v_read + group, parity);
        const uint32_t lower = score_at(v_tile), higher = score_at(score_tile);
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          store_matrices((tile < 4 ? lower : higher) ^ tile % 4 << 5, weight[tile]);
        }
      }
      fence_async_shared();
      __syncwarp();
      arrive(scores_full + group);
      wgmma_wait<0>();
      registers_fence(grad_q);
      if (busy) store_turned_back(grad_q, p.scale, p.cos, p.sin, first_row, p.length, to, 3 * width);
    }

    const int chunk = upper ? 1 : 0;  // of 64 keys
    const int first_key = chunk * 64 + warp % 4 * 16;
    float grad_v[32], grad_k[32];
    registers_define(grad_v);
    registers_define(grad_k);
    const uint64_t weight_operand = descriptor_mn_major(p_tile + chunk * Shape::kTileBytes, 0);
    const uint64_t grad_operand = descriptor_mn_major(grad_tile, 0);
    const uint64_t score_operand = descriptor_mn_major(chunk == 0 ? v_tile : score_tile, 0);
    const uint64_t q_operand = descriptor_mn_major(q_tile, 0);
    barrier_wait(scores_full + group, parity);
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      Mma<64, kInput>::template shared<Major::mn, Major::mn>(grad_v, descriptor_plus(weight_operand, 128 * tile),
                                                             descriptor_plus(grad_operand, 128 * tile), tile > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      Mma<64, kInput>::template shared<Major::mn, Major::mn>(grad_k, descriptor_plus(score_operand, 128 * tile),
                                                             descriptor_plus(q_operand, 128 * tile), tile > 0);
    }
    wgmma_commit();
    load_lse(at.item + jump.item, round + 1);
    wgmma_wait<1>();
    registers_fence(grad_v);
    if (first_key < p.length) store_exchanged(grad_v, first_key, p.length, to + 2 * width, 3 * width);
    wgmma_wait<0>();
    registers_fence(grad_k);
    arrive(scores_empty + group);
    arrive(empty + ring.stage);
    arrive(empty + second.stage);
    if (first_key < p.length) {
      store_turned_back(grad_k, p.scale, p.cos, p.sin, first_key, p.length, to + width, 3 * width);
    }
    ring.advance(2 * Shape::kGroups);
    head.advance(Shape::kGroups);
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
