#pragma once
// Projection to queries, keys and values, rotation and attention in one kernel, for the forward pass without gradient:
// qkv = h W^T never goes to memory. Head_dim 64, h (batch, length, 512), at most 104 positions.
//
// A block has one sample at a time, or a share of its heads, and h stays in shared memory as long as they take. For
// each head it reads 192 rows of W, which a cluster of blocks, with a sample each and the same heads, fetches once,
// stage by stage in turn. Samples come last first (launch.cuh says why).
// - Three warpgroups compute q, k and v of a head as (64 of W) x (positions), the transposed product: positions are
//   the operand of wgmma that may be any multiple of 8. They turn q and k by their positions and put all three where
//   the attention finds them, while the tensor cores work on the next head.
// - Two warpgroups do the attention of a head as in attention_forward.cuh, 64 queries each.
// - One thread loads.
// Every element is summed, rounded and turned as by the product and the attention one after the other.

#include <algorithm>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/sm90/core_matrices.cuh"
#include "ops/cuda/sm90/launch.cuh"

namespace hrm::ops::cuda::sm90 {

// W (64 * heads, inner) in boxes of a head's 64 rows x 128 bytes. Row 32 * half + 8 * w + g stands at
// 16 * w + 8 * half + g: then one thread's accumulators hold both dimensions that the rotation turns together.
inline cudaError_t encode_head_weights(CUtensorMap& map, const void* base, int64_t heads, int64_t inner) {
  const int64_t stride = 2 * inner;
  return encode_map(map, base, MapElement::bits16, MapSwizzle::bytes128,
                    {{inner, 0, 64}, {8, stride, 8}, {2, 32 * stride, 2}, {4, 8 * stride, 4}, {heads, 64 * stride, 1}});
}

// Who turns q and k: the product's warpgroups before they store them, with the table in the first-level cache or in
// shared memory, or the attention's in place.
enum class TurnedBy { product, product_with_table, attention };

// kColumns: positions, at least the length; a size that wgmma has. kStoreFrom, kStoreAtOnce: when, in steps of 64 of K,
// and how fast the last head's q, k and v are stored while this one's are computed.
template <int kColumns, int kBlocks, int kHeadBuffers, int kRingStages, int kStoreFrom, int kStoreAtOnce,
          TurnedBy kTurnedBy>
struct AttentionProjectedShape {
  static constexpr int kN = kColumns;
  static constexpr int kCluster = kBlocks;
  static constexpr int kBuffers = kHeadBuffers;
  static constexpr int kStages = kRingStages;
  static constexpr int kFirstStore = kStoreFrom;
  static constexpr int kStoresAtOnce = kStoreAtOnce;  // of 16 positions each
  static constexpr bool kTurnsLate = kTurnedBy == TurnedBy::attention;
  static constexpr bool kTable = kTurnedBy == TurnedBy::product_with_table;
  static constexpr int kKeyTiles = (kN + 15) / 16;
  static constexpr int kChunks = 8;              // of h: 64 of its 512 columns
  static constexpr int kTileBytes = kN * 128;    // q, k or v of a head, or a chunk of h
  static constexpr int kStageBytes = 192 * 128;  // of W
  // A head's v, then k, then q. wgmma adds over 16 keys at a time: past v it reads of k, times zero. Past q, whatever
  // it reads becomes rows that nobody needs.
  static constexpr int kK = kTileBytes;
  static constexpr int kQ = 2 * kTileBytes;
  static constexpr int kBufferBytes = 3 * kTileBytes;
  static constexpr int kH = kBuffers * kBufferBytes;
  static constexpr int kRing = kH + kChunks * kTileBytes;
  static constexpr int kTableAt = kRing + kStages * kStageBytes;
  static constexpr int kBarriers = kTableAt + (kTable ? 4 * (kN / 8) * 32 * 16 : 0);
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + kChunks + 2 * kBuffers);
  static constexpr int kUpperRow = kKeyTiles * 16 - 64;  // first row of the upper range of queries
  static constexpr int kThreads = 6 * 128;
  static_assert(kBytes <= 227 * 1024);
  static_assert(kStages < kChunks);
  static_assert(kChunks % kCluster == 0);
  static_assert((kChunks - kFirstStore) * kStoresAtOnce >= kKeyTiles);
};

// tma_load() of five dimensions to the same place in the first `blocks` blocks of a cluster.
__device__ inline void tma_load_all(void* to, const CUtensorMap* map, uint64_t* barrier, int blocks, int x, int y,
                                    int z, int u, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>((1 << blocks) - 1)), "r"(x), "r"(y), "r"(z),
      "r"(u), "r"(v)
      : "memory");
}

// An entry of the table. Volatile for the reason given at load_table().
__device__ inline float load_entry(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

// share_rows() of the first 8 of a warp's 16 rows.
__device__ inline void share_eight_rows(const uint32_t (&rows)[16], unsigned char* tile, int first_row, uint32_t lane) {
  const uint32_t at = shared_address(tile) + (first_row + lane % 8) * 128 + ((lane / 8 ^ lane % 8) << 4);
#pragma unroll
  for (int n = 0; n < 8; n += 4) {
    const uint32_t part[4] = {rows[2 * n], rows[2 * n + 2], rows[2 * n + 4], rows[2 * n + 6]};
    store_matrices(at ^ n << 4, part);
  }
  __syncwarp();
}

// Turns a head's k and q, kDistance bytes behind it, by their positions, in place, by eight warps. Calls wait() before
// it reads them. As class Rotation, but the table is read anew for each head.
template <typename T, int kRows, int kDistance, typename Wait>
__device__ inline void turn_heads(unsigned char* k, const float* cos, const float* sin, int length, int warp,
                                  const Wait& wait) {
  constexpr int kUnits = kRows / 4, kRounds = (kUnits + 7) / 8;  // of four rows
  if (cos == nullptr) return wait();
  const int lane = fresh_lane();
  const auto row_of = [&](int round) {
    const int unit = warp + 8 * round;
    return (unit >> 1) * 8 + (unit & 1) * 2 + (lane >> 3 & 1) * 4 + (lane >> 4);
  };
  float4 cosine[kRounds], sine[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int at = min(row_of(round), length - 1) * 32 + (lane & 7) * 4;
    cosine[round] = load_table(cos + at);
    sine[round] = load_table(sin + at);
  }
  wait();
  // Rows of a lane are 32 apart and swizzled alike.
  const int row = row_of(0);
  const uint32_t at = row * 128 + (((lane >> 1 & 3) ^ (row & 7)) << 4) + (lane & 1) * 8;
  unsigned char *const low = k + at, *const high = k + (at ^ 64);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (kUnits % 8 != 0 && round + 1 == kRounds && warp >= kUnits % 8) break;
    uint2 a[2], b[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      a[part] = *reinterpret_cast<const uint2*>(low + round * 4096 + part * kDistance);
      b[part] = *reinterpret_cast<const uint2*>(high + round * 4096 + part * kDistance);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      turn_four<T>(a[part], b[part], cosine[round], sine[round]);
      *reinterpret_cast<uint2*>(low + round * 4096 + part * kDistance) = a[part];
      *reinterpret_cast<uint2*>(high + round * 4096 + part * kDistance) = b[part];
    }
  }
}

template <typename T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_projected_kernel(const __grid_constant__ CUtensorMap h_map, const __grid_constant__ CUtensorMap w_map,
                               const AttentionProjected p, const int halvings) {
#if HRM_SM90A
  constexpr int kN = Shape::kN, kChunks = Shape::kChunks, kCluster = Shape::kCluster;
  constexpr int kStages = Shape::kStages, kBuffers = Shape::kBuffers;
  constexpr Input kInput = kInputOf<T>;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const ring = shared + Shape::kRing;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const empty = full + kStages;
  uint64_t* const h_full = empty + kStages;   // [chunk]
  uint64_t* const ready = h_full + kChunks;   // [buffer] q, k, v of a head are there
  uint64_t* const unused = ready + kBuffers;  // [buffer] and are no longer needed

  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // From one lane: so the compiler knows that it is the same for a warp, and uses the warp's own registers.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), warpgroup = warp / 4;
  const int rank = static_cast<int>(cluster_rank());
  const int clusters = static_cast<int>(gridDim.x) / kCluster, first = static_cast<int>(blockIdx.x) / kCluster;
  const int heads = p.heads >> halvings;
  // A sample for each block, in shares.
  const int items = static_cast<int>((p.batch + kCluster - 1) / kCluster) << halvings;
  const int rounds = (items - first + clusters - 1) / clusters;
  // Below zero there is none left for this block: all of it arrives as zeros.
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
    for (int i = 0; i < kBuffers; ++i) {
      barrier_init(ready + i, 12);
      barrier_init(unused + i, 8);
    }
    barrier_init_fence();
    tma_prefetch_map(&h_map);
    tma_prefetch_map(&w_map);
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
      // What all warpgroups have done, kStages steps behind what is loaded.
      int done = -kStages, done_round = 0;
      const int steps = heads * kChunks;  // of a round
      for (int chunk = 0; chunk < 2; ++chunk) load_h(0, chunk);
      for (int round = 0; round < rounds; ++round) {
        const int first_head = first_head_of(round);
        for (int head = 0; head < heads; ++head) {
          for (int chunk = 0; chunk < kChunks; ++chunk) {
            barrier_wait(empty + at.stage, at.parity ^ 1);
            barrier_arrive_expect(full + at.stage, Shape::kStageBytes);
            if (chunk % kCluster == rank) {  // in turn
              for (int part = 0; part < 3; ++part) {
                unsigned char* const to = ring + at.stage * Shape::kStageBytes + part * 8192;
                const int row = part * p.heads + first_head + head;
                if constexpr (kCluster == 1) {
                  tma_load(to, &w_map, full + at.stage, 64 * chunk, 0, 0, 0, row);
                } else {
                  tma_load_all(to, &w_map, full + at.stage, kCluster, 64 * chunk, 0, 0, 0, row);
                }
              }
            }
            at.advance();
            if (round == 0 && head == 0 && chunk + 2 < kChunks) load_h(0, chunk + 2);
            // The last head has read a chunk of h, and so have the others: the next round's may come.
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
    const bool turns = !Shape::kTurnsLate && part < 2 && p.cos != nullptr;
    const int entry = lane % 4 * 2 * 32 + 8 * slab + lane / 4;  // of the table: dimension, first position
    if constexpr (Shape::kTable) {
      if (turns) {
        for (int block = part; block < kBlocks; block += 2) {
          const int at = 8 * block + lane % 4 * 2, dim = 8 * slab + lane / 4;
          const int low = min(at, p.length - 1) * 32 + dim, high = min(at + 1, p.length - 1) * 32 + dim;
          reinterpret_cast<float4*>(shared + Shape::kTableAt)[(slab * kBlocks + block) * 32 + lane] =
              make_float4(p.cos[low], p.cos[high], p.sin[low], p.sin[high]);
        }
        named_barrier(3, 256);
      }
    }
    const auto load_angles = [&](int block) {
      if constexpr (Shape::kTable) {
        return reinterpret_cast<const float4*>(shared + Shape::kTableAt)[(slab * kBlocks + block) * 32 + lane];
      } else {
        if (8 * block + 8 <= kShortest<kN>) {
          const float *const cos = p.cos + entry + block * 256, *const sin = p.sin + entry + block * 256;
          return make_float4(load_entry(cos), load_entry(cos + 32), load_entry(sin), load_entry(sin + 32));
        }
        const int at = 8 * block + lane % 4 * 2, dim = 8 * slab + lane / 4;
        const int low = min(at, p.length - 1) * 32 + dim, high = min(at + 1, p.length - 1) * 32 + dim;
        return make_float4(load_entry(p.cos + low), load_entry(p.cos + high), load_entry(p.sin + low),
                           load_entry(p.sin + high));
      }
    };
    // This lane's row of four matrices of 8 dimensions x 8 positions, stored as positions x dimensions: both halves of
    // the head, 8 positions after 8.
    const uint32_t to = shared_address(shared) + (2 - part) * Shape::kTileBytes + lane / 16 * 1024 + lane % 8 * 128 +
                        (((lane / 8 % 2 * 4 + slab) ^ lane % 8) << 4);
    RingPosition<kStages> at;
    RingPosition<kBuffers> buffer;
    const auto release = [&](int stage) {
      if (lane < kCluster) barrier_arrive_remote(empty + stage, static_cast<uint32_t>(lane));
    };
    float d[kN / 2];
    uint32_t rounded[kN / 4] = {};
    bool pending = false;  // `rounded` is a head that has not been stored
    // Blocks 2 * i and 2 * i + 1 of it.
    const auto turn_and_store = [&](int i) {
      constexpr int kLast = kBlocks - 1;
      uint32_t out[4] = {rounded[4 * i], rounded[4 * i + 1], 0, 0};
      if (2 * i < kLast) out[2] = rounded[4 * i + 2], out[3] = rounded[4 * i + 3];
      if (turns) {
        float4 angles[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j <= kLast) angles[j] = load_angles(2 * i + j);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j > kLast) continue;
          float2 a = Pair<T>::unpack(out[2 * j]), b = Pair<T>::unpack(out[2 * j + 1]);
          turn(a.x, b.x, angles[j].x, angles[j].z);
          turn(a.y, b.y, angles[j].y, angles[j].w);
          out[2 * j] = Pair<T>::pack(a.x, a.y);
          out[2 * j + 1] = Pair<T>::pack(b.x, b.y);
        }
      }
      const uint32_t address = to + buffer.stage * Shape::kBufferBytes + i * 2048;
      if (2 * i < kLast) {
        store_matrices_transposed(address, out[0], out[1], out[2], out[3]);
      } else {
        store_matrices_transposed(address, out[0], out[1]);
      }
    };
    constexpr int kStores = (kBlocks + 1) / 2, kStoresAtOnce = Shape::kStoresAtOnce;
    const auto store_some = [&](int step) {
      if (step < 0 || step * kStoresAtOnce >= kStores) return;
      if (step == 0) barrier_wait(unused + buffer.stage, buffer.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kStoresAtOnce; ++i) {
        if (step * kStoresAtOnce + i < kStores) turn_and_store(step * kStoresAtOnce + i);
      }
      if ((step + 1) * kStoresAtOnce >= kStores) {
        // Ordinary stores above; wgmma behind the barrier.
        fence_async_shared();
        __syncwarp();
        if (lane == 0) barrier_arrive(ready + buffer.stage);
        buffer.advance();
      }
    };

    for (int round = 0; round < rounds; ++round) {
      for (int head = 0; head < heads; ++head) {
        registers_define(d);
        int previous = 0;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          // Known to the compiler where a head takes whole turns of the ring, two of them.
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
          if (pending) store_some(chunk - Shape::kFirstStore);
          previous = at.stage;
          at.advance();
        }
        wgmma_wait<0>();
        registers_fence(d);
        release(previous);
        // Pairs of positions, first of the lower half of the head's dimensions, then of the upper.
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) rounded[i] = Pair<T>::pack(d[2 * i], d[2 * i + 1]);
        pending = true;
      }
    }
#pragma unroll
    for (int step = 0; step < kChunks; ++step) store_some(step);
  } else {
    registers_increase<96>();
    constexpr float kLog2e = 1.4426950408889634f;
    const int width = p.heads * 64;
    RingPosition<kBuffers> buffer;
    int turns = 0;
    for (int round = 0; round < rounds; ++round) {
      const int sample = sample_of(round), first_head = first_head_of(round);
      for (int head = 0; head < heads; ++head, ++turns, buffer.advance()) {
        unsigned char* const v_tile = shared + buffer.stage * Shape::kBufferBytes;
        unsigned char* const q_tile = v_tile + Shape::kQ;
        // As in attention_forward.cuh: two ranges of 64 queries overlap, and one warpgroup leaves out what the other
        // does; which of them does, and which has the lower range, alternates.
        const bool all = (warpgroup & 1) == (turns & 1);
        const bool upper = all == ((turns & 2) != 0);
        const int base_row = upper ? Shape::kUpperRow : 0;
        const int first_row = base_row + warp % 4 * 16;
        const bool busy = first_row < p.length && (all || (upper ? first_row >= 64 : first_row < Shape::kUpperRow));

        float score[kN / 2];
        registers_define(score);
        const uint64_t a = descriptor_k_major(q_tile + base_row * 128);
        const uint64_t b = descriptor_k_major(v_tile + Shape::kK);
        if constexpr (Shape::kTurnsLate) {
          turn_heads<T, kN, Shape::kTileBytes>(v_tile + Shape::kK, p.cos, p.sin, p.length, warp - 12,
                                               [&] { barrier_wait(ready + buffer.stage, buffer.parity); });
          // Ordinary stores above; wgmma behind the barrier.
          fence_async_shared();
          named_barrier(3, 256);
        } else {
          barrier_wait(ready + buffer.stage, buffer.parity);
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Mma<kN, kInput>::shared(score, descriptor_plus(a, 2 * step), descriptor_plus(b, 2 * step), step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        registers_fence(score);

        float shift[2] = {0, 0}, sum[2] = {0, 0};
        uint32_t weight[Shape::kKeyTiles][4];
        if (busy) {
          const int t = lane % 4;
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
          if constexpr (kN % 16 != 0) weight[Shape::kKeyTiles - 1][2] = weight[Shape::kKeyTiles - 1][3] = 0;
        } else {
          registers_clear(weight);
        }

        // The rows of q take the results on their way out; the warpgroup's other warps have read them as an operand.
        named_barrier(warpgroup - 2, 128);
        float mixed[32];
        registers_define(mixed);
        const uint64_t v_operand = descriptor_mn_major(v_tile, 0);
        wgmma_fence();
#pragma unroll
        for (int tile = 0; tile < Shape::kKeyTiles; ++tile) {
          Mma<64, kInput>::template registers<Major::mn>(mixed, weight[tile], descriptor_plus(v_operand, 128 * tile),
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

        if (busy) {
          float inverse[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) inverse[half] = __fdividef(1.0f, sum[half]);
          uint32_t rows[16];
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            rows[i] = Pair<T>::pack(mixed[2 * i] * inverse[i % 2], mixed[2 * i + 1] * inverse[i % 2]);
          }
          // Past q, another tile begins.
          const uint32_t at_lane = fresh_lane();
          if (kN % 16 == 0 || first_row + 16 <= kN) {
            share_rows(rows, q_tile, first_row, at_lane);
          } else {
            share_eight_rows(rows, q_tile, first_row, at_lane);
          }
          // Eight lanes have one row.
          const uint32_t from = first_row * 128 + at_lane / 8 * 128 + ((at_lane % 8 ^ at_lane / 8) << 4);
          uint4 out[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            out[i] = *reinterpret_cast<const uint4*>(q_tile + (from ^ i % 2 << 6) + i * 512);
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(unused + buffer.stage);
          const int row = first_row + static_cast<int>(at_lane / 8);
          T* to = static_cast<T*>(p.out) + (static_cast<int64_t>(sample) * p.length + row) * width +
                  (first_head + head) * 64 + at_lane % 8 * 8;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (sample >= 0 && row + 4 * i < p.length) store_once(to, out[i]);
            to += 4 * width;
          }
        } else {
          __syncwarp();
          if (lane == 0) barrier_arrive(unused + buffer.stage);
        }
      }
    }
  }
  // A block stays until the others no longer arrive at its barriers.
  __syncwarp();
  cluster_sync();
#endif
}

// The heads of a sample, halved so many times, are what a block has at a time. `at_once`: clusters that the device can
// run at a time.
template <typename T, class Shape>
cudaError_t start_projected(const AttentionProjected& p, int halvings, int at_once, cudaStream_t stream) {
  CUtensorMap h_map, w_map;
  cudaError_t error = encode_heads(h_map, p.h, p.batch, p.length, p.inner, Shape::kN);
  if (error == cudaSuccess) error = encode_head_weights(w_map, p.weight, 3 * p.heads, p.inner);
  if (error != cudaSuccess) return error;
  const int64_t items = (p.batch + Shape::kCluster - 1) / Shape::kCluster << halvings;
  const auto clusters = static_cast<int>(std::min<int64_t>(items, at_once));
  return start(attention_projected_kernel<T, Shape>, Shape::kCluster * clusters, Shape::kThreads, Shape::kBytes,
               Shape::kCluster, stream, h_map, w_map, p, halvings);
}

}  // namespace hrm::ops::cuda::sm90
