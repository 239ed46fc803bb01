#pragma once
// Projection to queries, keys and values, rotation and attention in one kernel, for inference: qkv = h W^T is never
// written to memory. head_dim 64, h (batch, length, 512), at most 104 positions.
//
// A block works on one sample at a time, or on a share of its heads, and keeps h in shared memory meanwhile. For each
// head, it needs 192 rows of W. The two blocks of a cluster have different samples and the same heads, so each reads
// half of every stage, and both receive all of it. Samples go from last to first (see launch.cuh).
// - Three warpgroups compute q, k and v of a head as the transposed product (64 of W) x (positions). Positions are then
//   the wgmma operand whose size may be any multiple of 8. They store the results where the attention reads them, while
//   the tensor cores work on the next head.
// - Two warpgroups rotate q and k by their positions, in place, and compute the attention of a head as in
//   attention_forward.cuh, 64 queries each. q and k of the next head may be stored once the scores are complete, v once
//   it has been read.
// - One thread loads.
// Every element is summed, rounded and rotated as in the separate product and attention kernels.

#include <algorithm>

#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/sm90/attention.h"
#include "ops/attention/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/core_matrices.cuh"
#include "ops/cuda/sm90/launch.cuh"

namespace hrm::ops::cuda::sm90 {

// W (64 * heads, inner) in boxes of a head's 64 rows x 128 bytes. Row 32 * half + 8 * w + g is at 16 * w + 8 * half +
// g. So one thread's accumulators hold both dimensions that are rotated together. `blocks` share the 64 rows.
inline cudaError_t encode_head_weights(CUtensorMap& map, const void* base, int64_t heads, int64_t inner, int blocks) {
  const int64_t stride = 2 * inner;
  return encode_map(
      map, base, MapElement::bits16, MapSwizzle::bytes128,
      {{inner, 0, 64}, {8, stride, 8}, {2, 32 * stride, 2}, {4, 8 * stride, 4 / blocks}, {heads, 64 * stride, 1}});
}

// kColumns: positions, at least the length, and a size that wgmma supports.
template <int kColumns, int kRingStages>
struct AttentionProjectedShape {
  static constexpr int kN = kColumns;
  static constexpr int kStages = kRingStages;
  static constexpr int kCluster = 2;
  static constexpr int kChunks = 8;  // of h: 64 of its 512 columns each
  static constexpr int kKeyTiles = (kN + 15) / 16;
  // The last head's v is stored this many steps (of 64 of K) after q and k, because it is needed later.
  static constexpr int kVLater = 3;
  // If registers suffice, the attention warpgroups keep their part of the table. Otherwise they read it for each head,
  // early if the next head is ready.
  static constexpr bool kKeepsTable = kN <= 88;
  static constexpr int kTileBytes = kN * 128;    // q, k or v of a head, or a chunk of h
  static constexpr int kStageBytes = 192 * 128;  // of W
  // A head's v, then k, then q. wgmma sums over 16 keys at a time, so it reads zeros past v. Past q, its reads become
  // rows that nobody uses.
  static constexpr int kZeros = kTileBytes;
  static constexpr int kK = kZeros + 1024;
  static constexpr int kQ = kK + kTileBytes;
  static constexpr int kH = kQ + kTileBytes;
  static constexpr int kRing = kH + kChunks * kTileBytes;
  static constexpr int kStaging = kRing + kStages * kStageBytes;  // staging for results
  static constexpr int kBarriers = kStaging + 8 * 1024;
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + kChunks + 4);
  static constexpr int kUpperRow = kKeyTiles * 16 - 64;  // first row of the upper range of queries
  static constexpr int kThreads = 6 * 128;
  static_assert(kBytes <= 227 * 1024);
  static_assert(kStages < kChunks);
};

// tma_load() of five dimensions to the same address in the first `blocks` blocks of a cluster.
__device__ inline void tma_load_all(void* to, const CUtensorMap* map, uint64_t* barrier, int blocks, int x, int y,
                                    int z, int u, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>((1 << blocks) - 1)), "r"(x), "r"(y), "r"(z),
      "r"(u), "r"(v)
      : "memory");
}

// share_rows() for rows 8 * kHalf to 8 * kHalf + 7 of a warp's 16 rows, to a buffer of 8 rows.
template <int kHalf>
__device__ inline void share_eight_rows(const uint32_t (&rows)[16], unsigned char* to, uint32_t lane) {
  const uint32_t at = shared_address(to) + lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4);
#pragma unroll
  for (int n = 0; n < 8; n += 4) {
    const uint32_t part[4] = {rows[2 * n + kHalf], rows[2 * n + 2 + kHalf], rows[2 * n + 4 + kHalf],
                              rows[2 * n + 6 + kHalf]};
    store_matrices(at ^ n << 4, part);
  }
  __syncwarp();
}

// Rotates k and q by their positions, in place; this is the part of one of eight warps. Each has kRows rows, and q is
// kDistance bytes behind k.
template <typename T, int kRows, int kDistance>
class HeadTurn {
 public:
  // A lane's table entries, for turn().
  struct Angles {
    float4 cosine[(kRows + 31) / 32], sine[(kRows + 31) / 32];
  };

  __device__ HeadTurn(const AttentionProjected& p, int warp)
      : cos_(p.cos), sin_(p.sin), last_(p.length - 1), warp_(warp) {}

  __device__ void load(Angles& angles) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) load(round, angles.cosine[round], angles.sine[round]);
  }

  __device__ void turn(unsigned char* k, const Angles& angles) const {
    run(k, [&](int round, float4& cosine, float4& sine) {
      cosine = angles.cosine[round];
      sine = angles.sine[round];
    });
  }

  // The same, with entries read when they are needed.
  __device__ void turn(unsigned char* k) const {
    run(k, [&](int round, float4& cosine, float4& sine) { load(round, cosine, sine); });
  }

 private:
  static constexpr int kUnits = kRows / 4, kRounds = (kUnits + 7) / 8;  // of four rows

  // Rows of a lane are 32 apart.
  __device__ int first_row(int lane) const {
    return (warp_ >> 1) * 8 + (warp_ & 1) * 2 + (lane >> 3 & 1) * 4 + (lane >> 4);
  }

  __device__ void load(int round, float4& cosine, float4& sine) const {
    const int lane = fresh_lane(), entry = min(first_row(lane) + 32 * round, last_) * 32 + (lane & 7) * 4;
    cosine = load_table(cos_ + entry);
    sine = load_table(sin_ + entry);
  }

  template <class Load>
  __device__ void run(unsigned char* k, const Load& load) const {
    const int lane = fresh_lane(), row = first_row(lane);
    const uint32_t at = row * 128 + (((lane >> 1 & 3) ^ (row & 7)) << 4) + (lane & 1) * 8;
    unsigned char *const low = k + at, *const high = k + (at ^ 64);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (kUnits % 8 != 0 && round + 1 == kRounds && warp_ >= kUnits % 8) break;
      float4 cosine, sine;
      load(round, cosine, sine);
      uint2 a[2], b[2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        a[part] = *reinterpret_cast<const uint2*>(low + round * 4096 + part * kDistance);
        b[part] = *reinterpret_cast<const uint2*>(high + round * 4096 + part * kDistance);
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        turn_four<T>(a[part], b[part], cosine, sine);
        *reinterpret_cast<uint2*>(low + round * 4096 + part * kDistance) = a[part];
        *reinterpret_cast<uint2*>(high + round * 4096 + part * kDistance) = b[part];
      }
    }
    // Generic stores before, wgmma after a barrier.
    fence_async_shared();
  }

  const float* cos_;
  const float* sin_;
  int last_;
  int warp_;
};

template <typename T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_projected_kernel(const __grid_constant__ CUtensorMap h_map, const __grid_constant__ CUtensorMap w_map,
                               const AttentionProjected p, const int halvings) {
#if HRM_SM90A
  constexpr int kN = Shape::kN, kChunks = Shape::kChunks, kCluster = Shape::kCluster;
  constexpr int kStages = Shape::kStages;
  constexpr Input kInput = kInputOf<T>;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const ring = shared + Shape::kRing;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const empty = full + kStages;
  uint64_t* const h_full = empty + kStages;  // [chunk]
  uint64_t* const ready = h_full + kChunks;  // q and k of a head are complete; its v is
  uint64_t* const unused = ready + 2;        // the same are no longer needed

  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // Broadcast from one lane, so the compiler knows that the value is uniform in a warp and uses uniform registers.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), warpgroup = warp / 4;
  const int rank = static_cast<int>(cluster_rank());
  const int clusters = static_cast<int>(gridDim.x) / kCluster, first = static_cast<int>(blockIdx.x) / kCluster;
  const int heads = p.heads >> halvings;
  // One sample per block, or a share of its heads.
  const int items = static_cast<int>((p.batch + kCluster - 1) / kCluster) << halvings;
  const int rounds = (items - first + clusters - 1) / clusters;
  // Below zero, no sample is left for this block: all loads give zeros.
  const auto sample_of = [&](int round) {
    return static_cast<int>(p.batch) - 1 - kCluster * ((first + round * clusters) >> halvings) - rank;
  };
  const auto first_head_of = [&](int round) { return ((first + round * clusters) & ((1 << halvings) - 1)) * heads; };

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kCluster * 12);
    }
    for (int i = 0; i < kChunks; ++i) barrier_init(h_full + i, 1);
    barrier_init(ready, 8);
    barrier_init(ready + 1, 4);
    for (int i = 0; i < 2; ++i) barrier_init(unused + i, 8);
    barrier_init_fence();
    tma_prefetch_map(&h_map);
    tma_prefetch_map(&w_map);
  }
  if (thread < 64) {
    reinterpret_cast<uint4*>(shared + Shape::kZeros)[thread] = make_uint4(0, 0, 0, 0);
    fence_async_shared();
  }
  cluster_sync();
  wait_for_earlier();

  if (warpgroup == 5) {
    registers_decrease<24>();
    if (warp == 20 && lane == 0) {
      const auto load_h = [&](int round, int chunk) {
        barrier_arrive_expect(h_full + chunk, Shape::kTileBytes);
        tma_load(shared + Shape::kH + chunk * Shape::kTileBytes, &h_map, h_full + chunk, 64 * chunk, 0,
                 sample_of(round));
      };
      RingPosition<kStages> at;
      // The step that all warpgroups have finished, kStages steps behind the loads.
      int done = -kStages, done_round = 0;
      const int steps = heads * kChunks;    // per round
      constexpr int kSlabs = 4 / kCluster;  // of 16 rows, which this block reads for all
      for (int chunk = 0; chunk < 2; ++chunk) load_h(0, chunk);
      for (int round = 0; round < rounds; ++round) {
        const int first_head = first_head_of(round);
        for (int head = 0; head < heads; ++head) {
          for (int chunk = 0; chunk < kChunks; ++chunk) {
            barrier_wait(empty + at.stage, at.parity ^ 1);
            barrier_arrive_expect(full + at.stage, Shape::kStageBytes);
            for (int part = 0; part < 3; ++part) {
              tma_load_all(ring + at.stage * Shape::kStageBytes + part * 8192 + rank * kSlabs * 2048, &w_map,
                           full + at.stage, kCluster, 64 * chunk, 0, 0, rank * kSlabs,
                           part * p.heads + first_head + head);
            }
            at.advance();
            if (round == 0 && head == 0 && chunk + 2 < kChunks) load_h(0, chunk + 2);
            // The last head has read a chunk of h in all blocks, so the next round's chunk may be loaded.
            if (done >= steps - kChunks && done_round + 1 < rounds) {
              load_h(done_round + 1, done - (steps - kChunks));
            }
            if (++done == steps) {
              done = 0;
              ++done_round;
            }
          }
        }
      }
    }
    __syncwarp();
  } else if (warpgroup < 3) {
    registers_increase<88>();
    constexpr int kBlocks = kN / 8;  // of 8 positions
    const int part = warpgroup;      // q, k, v
    const int slab = warp % 4;
    // This lane's row of four matrices of 8 dimensions x 8 positions, stored as positions x dimensions: both halves of
    // the head, 8 positions at a time.
    const int tile = part == 0 ? Shape::kQ : part == 1 ? Shape::kK : 0, which = part < 2 ? 0 : 1;
    const uint32_t to = shared_address(shared) + tile + lane / 16 * 1024 + lane % 8 * 128 +
                        (((lane / 8 % 2 * 4 + slab) ^ lane % 8) << 4);
    RingPosition<kStages> at;
    uint32_t parity = 1;  // of `unused`
    const auto release = [&](int stage) {
      if (lane < kCluster) barrier_arrive_remote(empty + stage, static_cast<uint32_t>(lane));
    };
    float d[kN / 2];
    uint32_t rounded[kN / 4] = {};
    bool pending = false;  // `rounded` holds a head that has not been stored
    const auto store = [&] {
      barrier_wait(unused + which, parity);
      parity ^= 1;
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) {
        const uint32_t address = to + block * 1024;
        const uint32_t* const from = rounded + 2 * block;
        if (block + 1 < kBlocks) {
          store_matrices_transposed(address, from[0], from[1], from[2], from[3]);
        } else {
          store_matrices_transposed(address, from[0], from[1]);
        }
      }
      // Generic stores before, wgmma after the barrier.
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(ready + which);
    };

    for (int round = 0; round < rounds; ++round) {
      for (int head = 0; head < heads; ++head) {
        registers_define(d);
        int previous = 0;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          // A compile-time constant if a head takes exactly two turns of the ring.
          if constexpr (kChunks == 2 * kStages) at = {chunk % kStages, static_cast<uint32_t>(chunk / kStages)};
          if (head == 0) barrier_wait(h_full + chunk, round & 1);
          barrier_wait(full + at.stage, at.parity);
          const uint64_t a = descriptor_k_major(ring + at.stage * Shape::kStageBytes + part * 8192);
          const uint64_t b = descriptor_k_major(shared + Shape::kH + chunk * Shape::kTileBytes);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            Mma<kN, kInput>::shared(d, descriptor_plus(a, 2 * step), descriptor_plus(b, 2 * step),
                                    chunk > 0 || step > 0);
          }
          wgmma_commit();
          if (chunk > 0) {
            wgmma_wait<1>();
            release(previous);
          }
          if (pending && ((chunk == 0 && part < 2) || (chunk == Shape::kVLater && part == 2))) store();
          previous = at.stage;
          at.advance();
        }
        wgmma_wait<0>();
        registers_fence(d);
        release(previous);
        // Pairs of positions, first of the lower half of the head's dimensions, then of the upper half.
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) rounded[i] = Pair<T>::pack(d[2 * i], d[2 * i + 1]);
        pending = true;
      }
    }
    store();
  } else {
    registers_increase<96>();
    const int width = p.heads * 64;
    unsigned char *const k_tile = shared + Shape::kK, *const q_tile = shared + Shape::kQ;
    const HeadTurn<T, kN, Shape::kTileBytes> turn(p, warp - 12);
    typename HeadTurn<T, kN, Shape::kTileBytes>::Angles angles;
    if constexpr (Shape::kKeepsTable) {
      if (p.cos != nullptr) turn.load(angles);
    }
    bool turned = false;  // the next head has been rotated
    int count = 0;        // of heads
    for (int round = 0; round < rounds; ++round) {
      const int sample = sample_of(round), first_head = first_head_of(round);
      for (int head = 0; head < heads; ++head, ++count) {
        const uint32_t parity = count & 1;
        // As in attention_forward.cuh, two ranges of 64 queries overlap. One warpgroup skips the rows that the other
        // computes. Which one skips, and which one has the lower range, alternates.
        const bool all = (warpgroup & 1) == (count & 1);
        const bool upper = all == ((count & 2) != 0);
        const int base_row = upper ? Shape::kUpperRow : 0;
        const int first_row = base_row + warp % 4 * 16;
        const bool busy = first_row < p.length && (all || (upper ? first_row >= 64 : first_row < Shape::kUpperRow));

        float score[kN / 2];
        registers_define(score);
        const uint64_t a = descriptor_k_major(q_tile + base_row * 128);
        const uint64_t b = descriptor_k_major(k_tile);
        barrier_wait(ready, parity);
        if (p.cos != nullptr) {
          if constexpr (Shape::kKeepsTable) {
            turn.turn(k_tile, angles);
          } else {
            if (!turned) turn.turn(k_tile);
            turned = false;
          }
          named_barrier(3, 256);
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Mma<kN, kInput>::shared(score, descriptor_plus(a, 2 * step), descriptor_plus(b, 2 * step), step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        registers_fence(score);
        if (lane == 0) barrier_arrive(unused);

        float shift[2] = {0, 0}, sum[2] = {0, 0};
        uint32_t weight[Shape::kKeyTiles][4];
        if (busy) {
          softmax_weights<T>(score, lane, p.length, p.scale, weight, shift, sum);
        } else {
          registers_clear(weight);
        }

        barrier_wait(ready + 1, parity);
        float mixed[32];
        registers_define(mixed);
        const uint64_t v_operand = descriptor_mn_major(shared, 0);
        wgmma_fence();
#pragma unroll
        for (int tile = 0; tile < Shape::kKeyTiles; ++tile) {
          Mma<64, kInput>::template registers<Major::mn>(mixed, weight[tile], descriptor_plus(v_operand, 128 * tile),
                                                         tile > 0);
        }
        wgmma_commit();
        if constexpr (!Shape::kKeepsTable) {
          if (p.cos != nullptr && __all_sync(0xffffffffu, barrier_test(ready, parity ^ 1))) {
            turn.turn(k_tile);
            turned = true;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
          sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        }
        wgmma_wait<0>();
        registers_fence(mixed);
        if (lane == 0) barrier_arrive(unused + 1);

        if (busy) {
          float inverse[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) inverse[half] = __fdividef(1.0f, sum[half]);
          uint32_t rows[16];
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            rows[i] = Pair<T>::pack(mixed[2 * i] * inverse[i % 2], mixed[2 * i + 1] * inverse[i % 2]);
          }
          const uint32_t at_lane = fresh_lane();
          // Stages 8 rows at a time in the warp's own buffer. Eight lanes have one row.
          unsigned char* const staging = shared + Shape::kStaging + (warp - 12) * 1024;
          const uint32_t from = at_lane / 8 * 128 + ((at_lane % 8 ^ at_lane / 8) << 4);
          uint4 out[4];
          __syncwarp();
          share_eight_rows<0>(rows, staging, at_lane);
          out[0] = *reinterpret_cast<const uint4*>(staging + from);
          out[1] = *reinterpret_cast<const uint4*>(staging + (from ^ 64) + 512);
          __syncwarp();
          share_eight_rows<1>(rows, staging, at_lane);
          out[2] = *reinterpret_cast<const uint4*>(staging + from);
          out[3] = *reinterpret_cast<const uint4*>(staging + (from ^ 64) + 512);
          const int row = first_row + static_cast<int>(at_lane / 8);
          T* to = static_cast<T*>(p.out) + (static_cast<int64_t>(sample) * p.length + row) * width +
                  (first_head + head) * 64 + at_lane % 8 * 8;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (sample >= 0 && row + 4 * i < p.length) store_once(to, out[i]);
            to += 4 * width;
          }
        }
      }
    }
  }
  // A block must not exit while others may still arrive at its barriers.
  __syncwarp();
  cluster_sync();
#endif
}

// A block works at a time on the heads of a sample, halved `halvings` times. `at_once`: clusters that the device can
// run at a time.
template <typename T, class Shape>
cudaError_t start_projected(const AttentionProjected& p, int halvings, int at_once, cudaStream_t stream) {
  CUtensorMap h_map, w_map;
  cudaError_t error = encode_heads(h_map, p.h, p.batch, p.length, p.inner, Shape::kN);
  if (error == cudaSuccess) error = encode_head_weights(w_map, p.weight, 3 * p.heads, p.inner, Shape::kCluster);
  if (error != cudaSuccess) return error;
  const int64_t items = (p.batch + Shape::kCluster - 1) / Shape::kCluster << halvings;
  const auto clusters = static_cast<int>(std::min<int64_t>(items, at_once));
  return start(attention_projected_kernel<T, Shape>, Shape::kCluster * clusters, Shape::kThreads, Shape::kBytes,
               Shape::kCluster, stream, h_map, w_map, p, halvings);
}

}  // namespace hrm::ops::cuda::sm90
