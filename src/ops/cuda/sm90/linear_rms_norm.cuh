#pragma once
// Product, residual and RMSNorm: y = rms(residual + A (M, K) * W (N, K)^T), a row of N = 256 * kBlocksN columns shared
// by the kBlocksN blocks of a cluster.
//
// Each block computes 128 rows x 256 columns at a time, 64 rows in each of two warpgroups, and loops over tiles. The
// tile of A is loaded once per cluster: every block fetches its part and sends it to all. With kBlocksM = 2 the cluster
// also holds a second tile of rows, and the blocks of the same columns share the loads of W. The warpgroups meet only
// at the stages of the ring, so that one may run ahead into the next tile while the other finishes a row norm. The sums
// of squares travel through distributed shared memory and are added in the order of the columns: deterministic.

#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct RowNormShape {
  const void* residual;  // (rows, N)
  void* y;               // (rows, N)
  float* rstd;           // (rows), or null
  int64_t rows;
  int blocks_k;  // K / 64
  float eps;
};

constexpr int kRowNormStageBytes = (128 + 256) * 128;

constexpr int row_norm_shared_bytes(int stages, int blocks_n) {
  return 1024 + stages * kRowNormStageBytes + (2 * stages + 4) * 8 + 2 * 2 * blocks_n * 64 * 4;
}

template <Input kInput, int kBlocksN, int kBlocksM, int kStages>
__global__ void __launch_bounds__(384, 1)
    linear_rms_norm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                           const RowNormShape shape) {
#if HRM_SM90A
  constexpr int kCluster = kBlocksN * kBlocksM;
  constexpr int kPeers = kBlocksN + kBlocksM - 1;  // blocks that this one exchanges tiles with, itself included
  constexpr int N = 256 * kBlocksN;
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared_raw) + 1023) & ~uintptr_t{1023});
  uint64_t* full = reinterpret_cast<uint64_t*>(ring + kStages * kRowNormStageBytes);
  uint64_t* empty = full + kStages;
  uint64_t* sums_full = empty + kStages;                  // [2 buffers][2 warpgroups]
  float* sums = reinterpret_cast<float*>(sums_full + 4);  // [2 buffers][2 warpgroups][kBlocksN][64]

  const int rank = kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int n = rank % kBlocksN, m = rank / kBlocksN;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int first = static_cast<int>(blockIdx.x) / kCluster;
  constexpr int kClusterRows = 128 * kBlocksM;
  const int tiles = static_cast<int>((shape.rows + kClusterRows - 1) / kClusterRows);

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8 * kPeers);
    }
    for (int i = 0; i < 4; ++i) barrier_init(&sums_full[i], 1);
    barrier_init_fence();
  }
  if constexpr (kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  // The last warpgroup loads, by one thread; its registers go to the others.
  if (warp >= 8) {
    registers_decrease<24>();
    if (warp == 8 && lane == 0) {
      tma_prefetch_map(&map_a);
      tma_prefetch_map(&map_w);
      constexpr int kRowsA = 128 / kBlocksN, kRowsW = 256 / kBlocksM;
      constexpr uint16_t kAllN = (1 << kBlocksN) - 1;
      const auto same_rows = static_cast<uint16_t>(kAllN << (m * kBlocksN));
      const auto same_columns = static_cast<uint16_t>((kBlocksM > 1 ? (1 << kBlocksN) | 1 : 1) << n);
      RingPosition<kStages> at;
      for (int tile = first; tile < tiles; tile += clusters) {
        const int row = tile * kClusterRows + 128 * m + kRowsA * n;
        for (int k = 0; k < shape.blocks_k; ++k) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          uint64_t* barrier = &full[at.stage];
          barrier_arrive_expect(barrier, kRowNormStageBytes);
          uint8_t* a = ring + at.stage * kRowNormStageBytes;
          uint8_t* w = a + 128 * 128;
          if constexpr (kBlocksN > 1) {
            tma_load_multicast(a + kRowsA * 128 * n, &map_a, barrier, same_rows, 64 * k, row);
          } else {
            tma_load(a, &map_a, barrier, 64 * k, row);
          }
          if constexpr (kBlocksM > 1) {
            tma_load_multicast(w + kRowsW * 128 * m, &map_w, barrier, same_columns, 64 * k, 0, 0, 0,
                               8 * n + kRowsW / 32 * m);
          } else {
            tma_load(w, &map_w, barrier, 64 * k, 0, 0, 0, 8 * n);
          }
          at.advance();
        }
      }
    }
    __syncwarp();
  } else {
    registers_increase<240>();
    const int consumer = warp / 4, g = lane / 4, q = lane % 4;
    // The block that this lane tells of an emptied stage: first those of the same rows, then those of the same columns.
    const int told = lane < kBlocksN ? m * kBlocksN + lane : (1 - m) * kBlocksN + n;
    const auto release = [&](int stage) {
      if constexpr (kCluster > 1) {
        if (lane < kPeers) barrier_arrive_remote(&empty[stage], told);
      } else {
        if (lane == 0) barrier_arrive(&empty[stage]);
      }
    };
    RingPosition<kStages> at;
    RingPosition<2> exchange;
    for (int tile = first; tile < tiles; tile += clusters) {
      float d[128] = {};
      int previous = 0;
      for (int k = 0; k < shape.blocks_k; ++k) {
        barrier_wait(&full[at.stage], at.parity);
        const uint8_t* stage = ring + at.stage * kRowNormStageBytes;
        const uint64_t a = descriptor_k_major(stage + 64 * 128 * consumer);
        const uint64_t b = descriptor_k_major(stage + 128 * 128);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) Mma<256, kInput>::shared(d, a + 2 * step, b + 2 * step, true);
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      }
      const int tile_row = 64 * consumer + 16 * (warp % 4) + g;
      const int64_t row = int64_t{tile} * kClusterRows + 128 * m + tile_row;
      const int column = 256 * n + 8 * q;
      const auto load_residual = [&](int i, uint4(&to)[8]) {
        const bool inside = row + 8 * i < shape.rows;
        const uint16_t* from = static_cast<const uint16_t*>(shape.residual) + (row + 8 * i) * N + column;
#pragma unroll
        for (int run = 0; run < 8; ++run) {
          to[run] = inside ? __ldg(reinterpret_cast<const uint4*>(from + 32 * run)) : uint4{0, 0, 0, 0};
        }
      };
      uint4 residual[8];
      load_residual(0, residual);  // on its way while the last products finish
      wgmma_wait<0>();
      registers_fence(d);
      release(previous);

      // h, rounded, takes the place of the product in the accumulators.
      float squares[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto add = [&](float& low, float& high, uint32_t other) {
          const float2 a = widen_pair<kInput>(round_pair<kInput>(low, high)), b = widen_pair<kInput>(other);
          const float2 sum = widen_pair<kInput>(round_pair<kInput>(a.x + b.x, a.y + b.y));
          squares[i] += sum.x * sum.x;
          squares[i] += sum.y * sum.y;
          low = sum.x;
          high = sum.y;
        };
#pragma unroll
        for (int run = 0; run < 8; ++run) {
          const int at = 16 * run + 2 * i;
          add(d[at], d[at + 1], residual[run].x);
          add(d[at + 4], d[at + 5], residual[run].y);
          add(d[at + 8], d[at + 9], residual[run].z);
          add(d[at + 12], d[at + 13], residual[run].w);
        }
        if (i == 0) load_residual(1, residual);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
      }
      if constexpr (kBlocksN > 1) {
        uint64_t* arrived = &sums_full[2 * exchange.stage + consumer];
        float* mine = sums + (2 * exchange.stage + consumer) * kBlocksN * 64;
        if (threadIdx.x % 128 == 0) barrier_arrive_expect(arrived, (kBlocksN - 1) * 64 * 4);
        const int tile_warp_row = tile_row - 64 * consumer;
        if (q < 2) {
#pragma unroll
          for (int other = 1; other < kBlocksN; ++other) {
            store_remote_counted(mine + 64 * n + tile_warp_row + 8 * q, arrived, m * kBlocksN + (n + other) % kBlocksN,
                                 q == 0 ? squares[0] : squares[1]);
          }
        }
        barrier_wait_cluster(arrived, exchange.parity);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float total = 0;
#pragma unroll
          for (int block = 0; block < kBlocksN; ++block) {
            total += block == n ? squares[i] : mine[64 * block + tile_warp_row + 8 * i];
          }
          squares[i] = total;
        }
        exchange.advance();
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float rstd = rsqrtf(squares[i] / N + shape.eps);
        if (row + 8 * i < shape.rows) {
          uint16_t* to = static_cast<uint16_t*>(shape.y) + (row + 8 * i) * N + column;
#pragma unroll
          for (int run = 0; run < 8; ++run) {
            const int at = 16 * run + 2 * i;
            *reinterpret_cast<uint4*>(to + 32 * run) = uint4{round_pair<kInput>(d[at] * rstd, d[at + 1] * rstd),
                                                             round_pair<kInput>(d[at + 4] * rstd, d[at + 5] * rstd),
                                                             round_pair<kInput>(d[at + 8] * rstd, d[at + 9] * rstd),
                                                             round_pair<kInput>(d[at + 12] * rstd, d[at + 13] * rstd)};
          }
          if (shape.rstd != nullptr && n == 0 && q == 0) shape.rstd[row + 8 * i] = rstd;
        }
      }
    }
  }
  // A block stays until the others of its cluster no longer write into its shared memory.
  if constexpr (kCluster > 1) cluster_sync();
#endif
}

}  // namespace hrm::ops::cuda::sm90
