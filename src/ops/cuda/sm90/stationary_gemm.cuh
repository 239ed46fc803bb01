#pragma once
// Products with a short inner dimension: C (M, N) = A (M, K) * W (N, K)^T with K at most 512.
//
// A block keeps one slice of W in shared memory for the whole kernel (128 columns x 512 x 2 bytes = 128 KiB) and
// streams A past it in pieces of 64 rows x 64 of K: shared memory receives 8 KiB per 64 x 128 x 64 product. Each of
// three consumer warpgroups owns tiles of 64 rows, in turn, with a ring of pieces and a producer warp of its own, so
// that none waits for another: while one runs its epilogue, two keep the tensor cores busy. (One alone does not: a
// wgmma reads its rows of A before it multiplies, and only another warpgroup's products fill that gap.)
//
// Op, the epilogue, is a plain struct:
//   kInput, kN               operand type; accumulator columns of a slice, in kBoxes loads of kN / kBoxes rows of W
//   kBoxes                   2: the second load starts `box_distance` runs of 32 rows after the first
//   kTransposed              W is (K, N) in memory; rows of a slice are read by plain loads
//   store(d, row, slice, q)  the accumulators of rows `row` and `row + 8` of this thread

#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct StationaryShape {
  int64_t rows;
  int blocks_k;      // K / 64
  int slices;        // N / columns of a slice
  int groups;        // blocks that share a slice; tiles are dealt to them in turn
  int box_distance;  // see Op::kBoxes
};

constexpr int kStationaryBlocksK = 8;
constexpr int kPieceBytes = 64 * 128;  // 64 rows x 64 16-bit elements

template <class Op>
constexpr int stationary_shared_bytes(int blocks_k, int stages, int consumers) {
  return 1024 + blocks_k * Op::kN * 128 + consumers * stages * kPieceBytes +
         (kStationaryBlocksK + 2 * consumers * stages + consumers) * 8;
}

template <class Op, int kStages, int kConsumers, int kCluster>
__global__ void __launch_bounds__(kConsumers * 128 + 128, 1)
    stationary_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                      const StationaryShape shape, const Op op) {
#if HRM_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* weights = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* ring = weights + shape.blocks_k * Op::kN * 128;
  uint64_t* weights_full = reinterpret_cast<uint64_t*>(ring + kConsumers * kStages * kPieceBytes);
  uint64_t* full = weights_full + kStationaryBlocksK;
  uint64_t* empty = full + kConsumers * kStages;
  uint64_t* started = empty + kConsumers * kStages;

  const int slice = static_cast<int>(blockIdx.x) % shape.slices;
  const int group = static_cast<int>(blockIdx.x) / shape.slices;
  const int64_t all_tiles = (shape.rows + 63) / 64;
  const int tiles = static_cast<int>((all_tiles - group + shape.groups - 1) / shape.groups);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < shape.blocks_k; ++i) barrier_init(&weights_full[i], 1);
    for (int i = 0; i < kConsumers * kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 4 * kCluster);
    }
    for (int i = 0; i < kConsumers; ++i) barrier_init(&started[i], 4);
    barrier_init_fence();
  }
  if constexpr (kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  wait_for_earlier_kernels();

  // This warpgroup's ring; warp c of the last warpgroup fills that of consumer c.
  const int consumer = warp < 4 * kConsumers ? warp / 4 : warp % 4;
  ring += consumer * kStages * kPieceBytes;
  full += consumer * kStages;
  empty += consumer * kStages;

  // The producers' registers go to the others.
  if (warp >= 4 * kConsumers) {
    registers_decrease<kConsumers == 2 ? 24 : 32>();
    if (consumer < kConsumers && lane == 0) {
      const auto load_weights = [&](int k) {
        uint8_t* to = weights + k * Op::kN * 128;
        barrier_arrive_expect(&weights_full[k], Op::kN * 128);
#pragma unroll
        for (int box = 0; box < Op::kBoxes; ++box) {
          constexpr int kRuns = Op::kN / Op::kBoxes / 32;
          tma_load(to + box * (Op::kN / Op::kBoxes) * 128, &map_w, &weights_full[k], 64 * k, 0, 0, 0,
                   slice * kRuns + box * shape.box_distance);
        }
      };
      if (consumer == 0) {
        tma_prefetch_map(&map_a);
        tma_prefetch_map(&map_w);
        for (int k = 0; k < shape.blocks_k; ++k) load_weights(k);
      }
      RingPosition<kStages> at;
      for (int i = consumer; i < tiles; i += kConsumers) {
        const auto row = static_cast<int>((group + int64_t{i} * shape.groups) * 64);
        for (int k = 0; k < shape.blocks_k; ++k) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          barrier_arrive_expect(&full[at.stage], kPieceBytes);
          uint8_t* to = ring + at.stage * kPieceBytes;
          if constexpr (kCluster > 1) {
            constexpr int kRows = 64 / kCluster;
            const auto rank = static_cast<int>(cluster_rank());
            tma_load_multicast(to + rank * kRows * 128, &map_a, &full[at.stage], (1 << kCluster) - 1, 64 * k,
                               row + rank * kRows);
          } else {
            tma_load(to, &map_a, &full[at.stage], 64 * k, row);
          }
          at.advance();
        }
      }
    }
  } else {
    registers_increase<kConsumers == 2 ? 240 : 160>();
    const auto release = [&](int stage) {
      if constexpr (kCluster > 1) {
        if (lane < kCluster) barrier_arrive_remote(&empty[stage], lane);
      } else {
        if (lane == 0) barrier_arrive(&empty[stage]);
      }
    };
    RingPosition<kStages> at;
    // Each begins when the one before it is through a third of its first tile: warpgroups in step would come to their
    // epilogues together.
    if (consumer > 0 && consumer < tiles) barrier_wait(&started[consumer - 1], 0);
    for (int i = consumer; i < tiles; i += kConsumers) {
      float d[Op::kN / 2];
      int previous = 0;
      for (int k = 0; k < shape.blocks_k; ++k) {
        barrier_wait(&weights_full[k], 0);
        barrier_wait(&full[at.stage], at.parity);
        const uint64_t a = descriptor_k_major(ring + at.stage * kPieceBytes);
        const uint64_t b = descriptor_k_major(weights + k * Op::kN * 128);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Mma<Op::kN, Op::kInput>::shared(d, a + 2 * step, b + 2 * step, k > 0 || step > 0);
        }
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
        if (i == consumer && k == shape.blocks_k / kConsumers && lane == 0) barrier_arrive(&started[consumer]);
      }
      wgmma_wait<0>();
      registers_fence(d);
      release(previous);
      const int64_t tile = group + int64_t{i} * shape.groups;
      op.store(d, tile * 64 + 16 * (warp % 4) + lane / 4, slice, lane % 4);
    }
  }
  // A block of a cluster stays until the others no longer write into its shared memory.
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
