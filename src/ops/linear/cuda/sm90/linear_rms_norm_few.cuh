#pragma once
// Product, residual and RMSNorm for few rows: y = rms(residual + A (M, K) * W (512, K)^T).
//
// The tiles of linear_rms_norm.cuh are 128 rows high, which with some thousand rows leaves multiprocessors without
// work. Here the product is transposed: a block of a cluster of two computes 256 outputs, the 64-row operand of wgmma,
// for kRows rows of A, which may be any multiple of 16; each cluster has one tile. Rows of A are fetched once for both
// blocks. The residual is read, and y written, by the transposing matrix instructions, in the tile that the TMA brings
// and fetches. Sums have one order: over a thread's outputs, lanes, warps, blocks.

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/core_matrices.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/linear/cuda/sm90/linear_rms_norm.cuh"

namespace hrm::ops::cuda::sm90 {

template <int kRows>
struct SkinnyGemm {
  static constexpr int kStages = 4;
  static constexpr int kWeightBytes = 256 * 128;
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  static constexpr int kChunkBytes = kRows * 128;  // 64 outputs of all rows
  static constexpr int kTile = kStages * kStageBytes;
  static constexpr int kBarriers = kTile + 4 * kChunkBytes;
  static constexpr int kSums = kBarriers + (2 * kStages + 2) * 8;
  static constexpr int kBytes = 1024 + kSums + (8 + 2) * kRows * 4;
};

// map_a: boxes of kRows / 2 rows x 128 bytes. map_w: of 256 rows x 128 bytes. map_residual, map_y: (rows, 512) as (64,
// rows, 8), in boxes of 64 x kRows x 4 and 64 x kRows x 2.
template <Input kInput, Input kOperand, int kRows>
__global__ void __launch_bounds__(384, 1)
    linear_rms_norm_few_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                               const __grid_constant__ CUtensorMap map_residual,
                               const __grid_constant__ CUtensorMap map_y, const RowNormShape shape) {
#if HRM_SM90A
  using Shared = SkinnyGemm<kRows>;
  constexpr int kStages = Shared::kStages;
  constexpr bool k8 = kOperand == Input::e4m3;
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* const tile = ring + Shared::kTile;
  uint64_t* const full = reinterpret_cast<uint64_t*>(ring + Shared::kBarriers);
  uint64_t* const empty = full + kStages;
  uint64_t* const residual_full = empty + kStages;
  uint64_t* const totals_full = residual_full + 1;
  float* const partial = reinterpret_cast<float*>(ring + Shared::kSums);  // [8 warps][kRows]
  float* const totals = partial + 8 * kRows;                              // [2 blocks][kRows]

  const int n = static_cast<int>(cluster_rank());
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(blockIdx.x) / 2 * kRows;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8 * 2);
    }
    barrier_init(residual_full, 1);
    barrier_init(totals_full, 1);
    barrier_init_fence();
    barrier_arrive_expect(totals_full, kRows * 4);  // of the other block
  }
  cluster_sync();
  wait_for_earlier();

  if (warp >= 8) {
    registers_decrease<24>();
    if (warp == 8 && lane == 0) {
      constexpr int kElements = k8 ? 128 : 64;  // of 128 bytes
      const int residual_at = min(kStages, shape.blocks_k) - 1;
      RingPosition<kStages> at;
      for (int k = 0; k < shape.blocks_k; ++k, at.advance()) {
        barrier_wait(&empty[at.stage], at.parity ^ 1);
        barrier_arrive_expect(&full[at.stage], Shared::kStageBytes);
        uint8_t* const to = ring + at.stage * Shared::kStageBytes;
        tma_load(to, &map_w, &full[at.stage], kElements * k, 256 * n);
        tma_load_multicast(to + Shared::kWeightBytes + n * (Shared::kChunkBytes / 2), &map_a, &full[at.stage], 3,
                           kElements * k, first_row + n * (kRows / 2));
        if (k == residual_at) {
          barrier_arrive_expect(residual_full, 4 * Shared::kChunkBytes);
          tma_load(tile, &map_residual, residual_full, 0, first_row, 4 * n);
        }
      }
    }
    __syncwarp();
  } else {
    registers_increase<240>();
    const int consumer = warp / 4, slab = warp % 4, g = lane / 4, q = lane % 4;
    const int thread = static_cast<int>(threadIdx.x);
    float d[2][kRows / 2] = {};
    RingPosition<kStages> at;
    int previous = 0;
    for (int k = 0; k < shape.blocks_k; ++k) {
      barrier_wait(&full[at.stage], at.parity);
      const uint8_t* const stage = ring + at.stage * Shared::kStageBytes;
      const uint64_t w = descriptor_k_major(stage + 2 * 8192 * consumer);
      const uint64_t a = descriptor_k_major(stage + Shared::kWeightBytes);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int m = 0; m < 2; ++m) Mma<kRows, kOperand>::shared(d[m], w + 512 * m + 2 * step, a + 2 * step, true);
      }
      wgmma_commit();
      if (k > 0) {
        wgmma_wait<1>();
        if (lane < 2) barrier_arrive_remote(&empty[previous], lane);
      }
      previous = at.stage;
      at.advance();
    }
    wgmma_wait<0>();
    registers_fence(d[0]);
    registers_fence(d[1]);

    float unscale = 1;
    if constexpr (k8) unscale = shape.a_slot[1] * shape.w_slot[1];
    // Matrix l / 8 of four: outputs 8 * (l / 8 % 2) of the warp's 16, rows 8 * (l / 16) of 16; this lane's row of it.
    const auto matrices = [&](int m, int j) {
      const int row = 8 * j + lane / 16 * 8 + lane % 8;
      const int chunk = (2 * slab + lane / 8 % 2) ^ (lane % 8);
      return shared_address(tile) + (2 * consumer + m) * Shared::kChunkBytes + row * 128 + chunk * 16;
    };
    barrier_wait(residual_full, 0);
    float squares[kRows / 8][2] = {};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kRows / 8; j += 2) {
        uint32_t residual[4];
        load_matrices_transposed(residual, matrices(m, j));
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          float& low = d[m][4 * (j + part / 2) + 2 * (part % 2)];
          float& high = d[m][4 * (j + part / 2) + 2 * (part % 2) + 1];
          const float2 h =
              widen_pair<kInput>(add_pairs<kInput>(round_pair<kInput>(low * unscale, high * unscale), residual[part]));
          squares[j + part / 2][0] += h.x * h.x;
          squares[j + part / 2][1] += h.y * h.y;
          low = h.x;
          high = h.y;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        squares[j][0] += __shfl_xor_sync(0xffffffffu, squares[j][0], offset);
        squares[j][1] += __shfl_xor_sync(0xffffffffu, squares[j][1], offset);
      }
      if (g == 0) {
        *reinterpret_cast<float2*>(partial + warp * kRows + 8 * j + 2 * q) = make_float2(squares[j][0], squares[j][1]);
      }
    }
    named_barrier(1, 256);
    if (thread < kRows) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) total += partial[i * kRows + thread];
      totals[n * kRows + thread] = total;
      store_remote_counted(totals + n * kRows + thread, totals_full, n ^ 1, total);
    }
    named_barrier(1, 256);
    barrier_wait_cluster(totals_full, 0);
    const auto rstd_of = [&](float first, float second) { return rsqrtf((first + second) / 512 + shape.eps); };
    if (shape.rstd != nullptr && n == 0 && thread < kRows && first_row + thread < shape.rows) {
      shape.rstd[first_row + thread] = rstd_of(totals[thread], totals[kRows + thread]);
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 first = *reinterpret_cast<const float2*>(totals + 8 * j + 2 * q);
      const float2 second = *reinterpret_cast<const float2*>(totals + kRows + 8 * j + 2 * q);
      squares[j][0] = rstd_of(first.x, second.x);
      squares[j][1] = rstd_of(first.y, second.y);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kRows / 8; j += 2) {
        const auto y = [&](int part) {
          const int of = 4 * (j + part / 2) + 2 * (part % 2);
          return round_pair<kInput>(d[m][of] * squares[j + part / 2][0], d[m][of + 1] * squares[j + part / 2][1]);
        };
        store_matrices_transposed(matrices(m, j), y(0), y(1), y(2), y(3));
      }
    }
    fence_async_shared();
    named_barrier(2 + consumer, 128);
    const bool leader = thread % 128 == 0;
    if (leader) {
      tma_store(&map_y, tile + 2 * consumer * Shared::kChunkBytes, 0, first_row, 4 * n + 2 * consumer);
      tma_store_commit();
    }
    if constexpr (k8) {
      if (shape.y8 != nullptr) {
        const float scale = shape.y_slot[0];
        uint32_t largest = 0;
        // Four threads have the 64 outputs of a chunk of a row.
        for (int i = thread % 128; i < 2 * kRows * 4; i += 128) {
          const int m = i / (kRows * 4), row = i % (kRows * 4) / 4, part = i % 4;
          if (first_row + row >= shape.rows) continue;
          const uint8_t* const from = tile + (2 * consumer + m) * Shared::kChunkBytes + row * 128;
          const uint4 low = *reinterpret_cast<const uint4*>(from + ((2 * part) ^ (row % 8)) * 16);
          const uint4 high = *reinterpret_cast<const uint4*>(from + ((2 * part + 1) ^ (row % 8)) * 16);
          largest = larger_sizes(larger_sizes(larger_sizes(larger_sizes(largest, low.x), low.y), low.z), low.w);
          largest = larger_sizes(larger_sizes(larger_sizes(larger_sizes(largest, high.x), high.y), high.z), high.w);
          store_16(shape.y8 + (int64_t{first_row} + row) * 512 + 256 * n + 128 * consumer + 64 * m + 16 * part,
                   {quantize_pairs<kInput>(low.x, low.y, scale), quantize_pairs<kInput>(low.z, low.w, scale),
                    quantize_pairs<kInput>(high.x, high.y, scale), quantize_pairs<kInput>(high.z, high.w, scale)});
        }
        raise_amax_of_pairs<kInput>(shape.y_slot, largest);
      }
    }
    if (leader) tma_store_wait_read<0>();
    __syncwarp();
  }
  // A block stays until the other one no longer sends into its shared memory.
  cluster_sync();
#endif
}

}  // namespace hrm::ops::cuda::sm90
