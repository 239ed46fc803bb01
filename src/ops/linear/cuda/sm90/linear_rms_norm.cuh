#pragma once
// Product, residual and RMSNorm: y = rms(residual + A (M, K) * W (N, K)^T), a row of N = 256 * kBlocks columns shared
// by the kBlocks blocks of a cluster.
//
// Each block computes 128 rows x 256 columns at a time, 64 rows in each of two warpgroups, and loops over tiles. The
// tile of A is loaded once per cluster: every block fetches its part and sends it to all. The residual arrives by TMA
// while the products run, in the buffer in which y then leaves, also by TMA, while the next products run: with a K of
// 512 the kernel moves as much as the memory can while it multiplies. The sums of squares travel through distributed
// shared memory and are added in the order of the columns: deterministic.
//
// The operands are 16-bit elements, or e4m3 with a scale each; then y may be written in e4m3 also, straight from the
// registers: four threads have whole sectors of 32 bytes.

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct RowNormShape {
  float* rstd;         // (rows), or null
  const void* addend;  // kAdds only: (rows, N)
  int64_t rows;
  int blocks_k;  // rows of 128 bytes in K; what is past the end arrives as zeros
  float eps;
  // e4m3 operands only; slots are {scale, 1 / scale, amax, 0}.
  const float* a_slot;
  const float* w_slot;
  uint8_t* y8;  // (rows, N), or null
  float* y_slot;
};

constexpr int kRowNormStageBytes = (128 + 256) * 128;
constexpr int kRowNormRowBytes = 64 * 512;  // 64 rows of residual or y, for each warpgroup

constexpr int row_norm_shared_bytes(int stages, int blocks) {
  return 1024 + stages * kRowNormStageBytes + 2 * kRowNormRowBytes + (2 * stages + 6) * 8 + 2 * 2 * blocks * 64 * 4;
}

// map_residual, map_y: (rows, N) as (64, rows, N / 64), in boxes of 64 x 64 x 4. kInput: residual and y, bf16 or f16.
// kOperand: A and W, the same or e4m3. kAdds: y + addend is written in y's place.
template <Input kInput, Input kOperand, int kBlocks, int kStages, bool kAdds>
__global__ void __launch_bounds__(384, 1)
    linear_rms_norm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                           const __grid_constant__ CUtensorMap map_residual, const __grid_constant__ CUtensorMap map_y,
                           const RowNormShape shape) {
#if HRM_SM90A
  constexpr int N = 256 * kBlocks;
  constexpr bool k8 = kOperand == Input::e4m3;
  static_assert(k8 || kOperand == kInput);
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* row_buffers = ring + kStages * kRowNormStageBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(row_buffers + 2 * kRowNormRowBytes);
  uint64_t* empty = full + kStages;
  uint64_t* residual_full = empty + kStages;              // [2 warpgroups]
  uint64_t* sums_full = residual_full + 2;                // [2 buffers][2 warpgroups]
  float* sums = reinterpret_cast<float*>(sums_full + 4);  // [2 buffers][2 warpgroups][kBlocks][64]

  const int n = kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int clusters = static_cast<int>(gridDim.x) / kBlocks;
  const int first = static_cast<int>(blockIdx.x) / kBlocks;
  const int tiles = static_cast<int>((shape.rows + 127) / 128);

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8 * kBlocks);
    }
    for (int i = 0; i < 2; ++i) barrier_init(&residual_full[i], 1);
    for (int i = 0; i < 4; ++i) barrier_init(&sums_full[i], 1);
    barrier_init_fence();
  }
  if constexpr (kBlocks > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  wait_for_earlier();

  // The last warpgroup loads, by one thread; its registers go to the others.
  if (warp >= 8) {
    registers_decrease<24>();
    if (warp == 8 && lane == 0) {
      tma_prefetch_map(&map_a);
      tma_prefetch_map(&map_w);
      constexpr int kRowsA = 128 / kBlocks;
      constexpr int kElements = k8 ? 128 : 64;  // of 128 bytes
      RingPosition<kStages> at;
      for (int tile = first; tile < tiles; tile += clusters) {
        const int row = tile * 128 + kRowsA * n;
        for (int k = 0; k < shape.blocks_k; ++k) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          uint64_t* barrier = &full[at.stage];
          barrier_arrive_expect(barrier, kRowNormStageBytes);
          uint8_t* a = ring + at.stage * kRowNormStageBytes;
          if constexpr (kBlocks > 1) {
            tma_load_multicast(a + kRowsA * 128 * n, &map_a, barrier, (1 << kBlocks) - 1, kElements * k, row);
          } else {
            tma_load(a, &map_a, barrier, kElements * k, row);
          }
          tma_load(a + 128 * 128, &map_w, barrier, kElements * k, 0, 0, 0, 8 * n);
          at.advance();
        }
      }
    }
    __syncwarp();
  } else {
    registers_increase<240>();
    const int consumer = warp / 4, g = lane / 4, q = lane % 4;
    const bool leader = threadIdx.x % 128 == 0;
    const auto release = [&](int stage) {
      if constexpr (kBlocks > 1) {
        if (lane < kBlocks) barrier_arrive_remote(&empty[stage], lane);
      } else {
        if (lane == 0) barrier_arrive(&empty[stage]);
      }
    };
    // The 16 bytes of a row (of the warpgroup's 64) that hold columns 32 * run + 8 * q and the next seven, as the TMA
    // places them.
    uint8_t* rows = row_buffers + consumer * kRowNormRowBytes;
    const int local_row = 16 * (warp % 4) + g;
    const auto piece = [&](int run, int i) {
      const int chunk = (4 * (run % 2) + q) ^ g;
      return reinterpret_cast<uint4*>(rows + run / 2 * 8192 + (local_row + 8 * i) * 128 + 16 * chunk);
    };
    RingPosition<kStages> at;
    RingPosition<2> exchange;
    uint32_t residual_parity = 0;
    float unscale = 1, y_scale = 0;
    uint32_t y_largest = 0;
    if constexpr (k8) {
      unscale = shape.a_slot[1] * shape.w_slot[1];
      if (shape.y8 != nullptr) y_scale = shape.y_slot[0];
    }
    for (int tile = first; tile < tiles; tile += clusters) {
      const int64_t first_row = int64_t{tile} * 128 + 64 * consumer;
      float d[128] = {};
      int previous = 0;
      for (int k = 0; k < shape.blocks_k; ++k) {
        barrier_wait(&full[at.stage], at.parity);
        const uint8_t* stage = ring + at.stage * kRowNormStageBytes;
        const uint64_t a = descriptor_k_major(stage + 64 * 128 * consumer);
        const uint64_t b = descriptor_k_major(stage + 128 * 128);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) Mma<256, kOperand>::shared(d, a + 2 * step, b + 2 * step, true);
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
        // By now the last tile's y has left the buffer.
        if (leader && k == (shape.blocks_k > 1 ? 1 : 0)) {
          tma_store_wait_read<0>();
          barrier_arrive_expect(&residual_full[consumer], kRowNormRowBytes);
          tma_load(rows, &map_residual, &residual_full[consumer], 0, static_cast<int>(first_row), 4 * n);
        }
        __syncwarp();
      }
      wgmma_wait<0>();
      registers_fence(d);
      release(previous);
      barrier_wait(&residual_full[consumer], residual_parity);
      residual_parity ^= 1;

      // h, rounded, takes the place of the product in the accumulators.
      float squares[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto add = [&](float& low, float& high, uint32_t other) {
          if constexpr (k8) low *= unscale, high *= unscale;
          const float2 sum = widen_pair<kInput>(add_pairs<kInput>(round_pair<kInput>(low, high), other));
          squares[i] += sum.x * sum.x;
          squares[i] += sum.y * sum.y;
          low = sum.x;
          high = sum.y;
        };
#pragma unroll
        for (int run = 0; run < 8; ++run) {
          const uint4 residual = *piece(run, i);
          const int of = 16 * run + 2 * i;
          add(d[of], d[of + 1], residual.x);
          add(d[of + 4], d[of + 5], residual.y);
          add(d[of + 8], d[of + 9], residual.z);
          add(d[of + 12], d[of + 13], residual.w);
        }
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
      }
      // On their way while the sums are exchanged.
      uint4 others[kAdds ? 2 : 1][8];
      if constexpr (kAdds) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t row = first_row + local_row + 8 * i;
          const auto* from = static_cast<const uint16_t*>(shape.addend) + row * N + 256 * n + 8 * q;
#pragma unroll
          for (int run = 0; run < 8; ++run) {
            others[i][run] = row < shape.rows ? *reinterpret_cast<const uint4*>(from + 32 * run) : uint4{};
          }
        }
      }
      if constexpr (kBlocks > 1) {
        uint64_t* arrived = &sums_full[2 * exchange.stage + consumer];
        float* mine = sums + (2 * exchange.stage + consumer) * kBlocks * 64;
        if (leader) barrier_arrive_expect(arrived, (kBlocks - 1) * 64 * 4);
        if (q < 2) {
#pragma unroll
          for (int other = 1; other < kBlocks; ++other) {
            store_remote_counted(mine + 64 * n + local_row + 8 * q, arrived, (n + other) % kBlocks,
                                 q == 0 ? squares[0] : squares[1]);
          }
        }
        barrier_wait_cluster(arrived, exchange.parity);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float total = 0;
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            total += block == n ? squares[i] : mine[64 * block + local_row + 8 * i];
          }
          squares[i] = total;
        }
        exchange.advance();
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float rstd = rsqrtf(squares[i] / N + shape.eps);
        const int64_t row = first_row + local_row + 8 * i;
        const bool writes_8 = k8 && shape.y8 != nullptr && row < shape.rows;
        uint8_t* const to_8 = writes_8 ? shape.y8 + row * N + 256 * n + 8 * q : nullptr;
#pragma unroll
        for (int run = 0; run < 8; ++run) {
          const int of = 16 * run + 2 * i;
          uint4 y = {round_pair<kInput>(d[of] * rstd, d[of + 1] * rstd),
                     round_pair<kInput>(d[of + 4] * rstd, d[of + 5] * rstd),
                     round_pair<kInput>(d[of + 8] * rstd, d[of + 9] * rstd),
                     round_pair<kInput>(d[of + 12] * rstd, d[of + 13] * rstd)};
          if constexpr (kAdds) {
            const uint4 other = others[i][run];
            y = {add_pairs<kInput>(y.x, other.x), add_pairs<kInput>(y.y, other.y), add_pairs<kInput>(y.z, other.z),
                 add_pairs<kInput>(y.w, other.w)};
          }
          *piece(run, i) = y;
          if constexpr (k8) {
            if (writes_8) {
              y_largest = larger_sizes(larger_sizes(y_largest, y.x), y.y);
              y_largest = larger_sizes(larger_sizes(y_largest, y.z), y.w);
              *reinterpret_cast<uint2*>(to_8 + 32 * run) =
                  make_uint2(quantize_pairs<kInput>(y.x, y.y, y_scale), quantize_pairs<kInput>(y.z, y.w, y_scale));
            }
          }
        }
        if (shape.rstd != nullptr && n == 0 && q == 0 && row < shape.rows) shape.rstd[row] = rstd;
      }
      fence_async_shared();
      named_barrier(1 + consumer, 128);
      if (leader) {
        tma_store(&map_y, rows, 0, static_cast<int>(first_row), 4 * n);
        tma_store_commit();
      }
    }
    if (leader) tma_store_wait_read<0>();
    __syncwarp();
    if constexpr (k8) {
      if (shape.y8 != nullptr) raise_amax_of_pairs<kInput>(shape.y_slot, y_largest);
    }
  }
  // A block stays until the others of its cluster no longer write into its shared memory.
  if constexpr (kBlocks > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

}  // namespace hrm::ops::cuda::sm90
