#pragma once
// What memory_blocks.cuh is made of: its places in shared memory, copies from block to block, operands, and the threads
// that load the weights.

#include "ops/attention/cuda/sm90/attention_tiles.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/memory/cuda/memory_blocks.h"

namespace hrm::ops::cuda::sm90 {

struct MemoryMaps {
  struct Block {
    CUtensorMap qkv, o, gate_up, down;
  };
  Block blocks[kMaxMemoryBlocks];
};

template <int kHeads>
struct MemoryShape {
  static constexpr int kRanks = kHeads;
  static constexpr int kWidth = 64 * kRanks;
  static constexpr int kOwnInner = 192;  // columns of act that a rank computes
  static constexpr int kInner = kOwnInner * kRanks;
  static constexpr int kTile = 64 * 128;  // 64 rows of 64 16-bit elements
  static constexpr int kStages = 4;       // of each ring
  static constexpr int kX1 = kRanks * kTile;
  static constexpr int kHead = 2 * kRanks * kTile;  // q, k, v; then act
  static constexpr int kRing = kHead + 3 * kTile;
  static constexpr int kSums = kRing + 2 * kStages * kTile;  // [2][rank][row][warpgroup] float
  static constexpr int kSumBytes = 64 * 2 * 4;
  static constexpr int kNorms = kSums + 2 * kRanks * kSumBytes;  // own 64 weights of each norm
  static constexpr int kBarriers = kNorms + (2 * kMaxMemoryBlocks + 1) * 64 * 4;
  static constexpr int kBytes = kBarriers + 8 * (4 * kStages + 2 * kRanks + 1);
  static_assert(kBytes <= 227 * 1024);
};

constexpr int kMemoryThreads = 3 * 128;  // two warpgroups that compute, one that loads

// `bytes` from this block's shared memory to the same place in that of block `rank`, whose barrier counts them.
__device__ inline void copy_to_rank(const void* from, uint32_t bytes, uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, remote;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [remote];\n"
      "}\n" ::"r"(shared_address(from)),
      "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

// A warp's 16 rows of a K-major tile, 64 of K, as the left operand of four wgmmas.
__device__ inline void load_rows(uint32_t (&a)[4][4], const unsigned char* tile, int warp) {
  const int lane = fresh_lane(), row = 16 * (warp % 4) + lane % 16;
  const uint32_t from = shared_address(tile) + row * 128;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t address = from + (((2 * step + lane / 16) ^ row % 8) << 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[step][0]), "=r"(a[step][1]), "=r"(a[step][2]), "=r"(a[step][3])
                 : "r"(address)
                 : "memory");
  }
}

// Accumulators begin as zeros that are written here: those that a first product would overwrite seem to be in use from
// one turn of the loop around everything to the next, all at the same time.
template <int kCount>
__device__ inline void start_at_zero(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("mov.b32 %0, 0;" : "=f"(d[i]));
}

// D (64 x N) += A * N rows of B over 64 of K, B a K-major tile.
template <Input kInput, int kN>
__device__ inline void multiply_chunk(float (&d)[kN / 2], const uint32_t (&a)[4][4], const unsigned char* b) {
  const uint64_t descriptor = descriptor_k_major(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    Mma<kN, kInput>::template registers<Major::k>(d, a[step], descriptor + 2 * step, true);
  }
}

// Columns of the down product belong to 64 for each rank. A warpgroup multiplies those of half of the ranks,
// kDownOwners at a time.
constexpr int kDownOwners = 2;
template <int kRanks>
__device__ inline int down_owner(int turn, int side, int i) {
  return kRanks / 2 * side + kDownOwners * turn + i;
}

// The weights for warpgroup `side` in the order in which it needs them.
template <class Shape>
__device__ inline void load_memory_weights(const MemoryMaps& maps, const MemoryBlocks& p, unsigned char* ring,
                                           uint64_t* full, uint64_t* empty, int rank, int side) {
  constexpr int kRanks = Shape::kRanks, kStages = Shape::kStages;
  RingPosition<kStages> at;
  // 32 rows, or twice 32.
  const auto load = [&](const CUtensorMap& map, int k, int row, int second = -1) {
    barrier_wait(empty + at.stage, at.parity ^ 1);
    barrier_arrive_expect(full + at.stage, second < 0 ? Shape::kTile / 2 : Shape::kTile);
    unsigned char* const to = ring + at.stage * Shape::kTile;
    tma_load(to, &map, full + at.stage, k, row);
    if (second >= 0) tma_load(to + Shape::kTile / 2, &map, full + at.stage, k, second);
    at.advance();
  };
  const int head = 64 * rank, inner = Shape::kOwnInner * rank + 96 * side;
  for (int pass = 0; pass < p.steps * p.count; ++pass) {
    const MemoryMaps::Block& block = maps.blocks[pass % p.count];
    for (int i = 0; i < kRanks; ++i) {
      const int k = 64 * ((rank + i) % kRanks), first = 2 * side * Shape::kWidth + head;
      load(block.qkv, k, first, first + 32);
      load(block.qkv, k, Shape::kWidth + head + 32 * side);
    }
    for (int i = 0; i < kRanks; ++i) load(block.o, 64 * ((rank + i) % kRanks), head + 32 * side);
    for (int i = 0; i < kRanks; ++i) {
      const int k = 64 * ((rank + i) % kRanks);
      load(block.gate_up, k, inner, inner + 32);
      load(block.gate_up, k, inner + 64, Shape::kInner + inner);
      load(block.gate_up, k, Shape::kInner + inner + 32, Shape::kInner + inner + 64);
    }
    for (int turn = 0; turn < kRanks / kDownOwners / 2; ++turn) {
      for (int k = 0; k < 3; ++k) {
        for (int i = 0; i < kDownOwners; ++i) {
          const int row = 64 * down_owner<kRanks>(turn, side, i);
          load(block.down, Shape::kOwnInner * rank + 64 * k, row, row + 32);
        }
      }
    }
  }
}

}  // namespace hrm::ops::cuda::sm90
