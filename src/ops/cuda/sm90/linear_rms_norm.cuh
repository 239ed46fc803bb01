#pragma once
// Product, residual and RMSNorm: y = rms(residual + A (M, K) * W (N, K)^T), a row of N = 256 * kBlocks columns shared
// by kBlocks blocks of a cluster.
//
// A block computes 128 rows x 256 columns at a time and loops over tiles. Parts of A and W that several blocks of the
// cluster need are fetched once: each block fetches its share and sends it to the others. Three warpgroups:
// - Two consumers, 64 rows each, multiply and add the residual, which has arrived meanwhile. They leave h, rounded, in
//   the residual's place, send the sums of its squares to the other blocks of the row and go on with the next tile:
//   they wait for nobody, and while they are at it the tensor cores have nothing to do.
// - Of the third, one thread starts the loads, and three warps read h, and the sums of all blocks in the order of the
//   columns (deterministic), and write y, while the tensor cores are busy with the next tile. Of the last tile the
//   consumers do that themselves.
// Each warp of the consumers has its own 16 rows, a part of the tile, and hands them to one reader, always the same,
// which loads the next tile's residual into their place.
//
// The second consumer begins a tile after the first has begun its kLag-th stage, so that one of them multiplies while
// the other adds. Nobody waits in a circle: the stages that the first needs for that, kLag <= kStages, are loaded once
// both have ended the products of the tile before, for which they wait only for readers and blocks that are busy with
// tiles before that one.
//
// The operands are 16-bit elements, or e4m3 with a scale each; then y may be written in e4m3 also.

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct RowNormShape {
  float* rstd;  // (rows), or null
  int64_t rows;
  int blocks_k;  // stages of a tile; what is past the end arrives as zeros
  float eps;
  // e4m3 operands only; slots are {scale, 1 / scale, amax, 0}.
  const float* a_slot;
  const float* w_slot;
  uint8_t* y8;  // (rows, N), or null
  float* y_slot;
};

constexpr int kRowNormPartBytes = 16 * 512;  // of residual, then h: the 16 rows of a warp

constexpr int row_norm_shared_bytes(int stages, int chunk, int blocks) {
  return 1024 + stages * (128 + 256) * chunk + 8 * kRowNormPartBytes + (2 * stages + 1 + 8 + 16) * 8 +
         2 * 8 * blocks * 16 * 4;
}

// A cluster has kBlocks * kTiles blocks: kTiles tiles of 128 rows, below each other. map_a: boxes of 128 / kBlocks rows
// x 128 bytes; map_w: of 8 / kTiles runs of rows; map_residual: (rows, N) as (64, rows, N / 64), in boxes of 64 x 16 x
// 4. kInput: residual and y, bf16 or f16. kOperand: A and W, the same or e4m3.
template <Input kInput, Input kOperand, int kBlocks, int kTiles, int kChunk, int kStages, int kLag>
__global__ void __launch_bounds__(384, 1)
    linear_rms_norm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                           const __grid_constant__ CUtensorMap map_residual, uint16_t* const y,
                           const RowNormShape shape) {
#if HRM_SM90A
  constexpr int N = 256 * kBlocks, kCluster = kBlocks * kTiles, kStageBytes = (128 + 256) * kChunk;
  constexpr bool k8 = kOperand == Input::e4m3;
  static_assert(k8 || kOperand == kInput);
  static_assert(kStages >= 2 && kLag >= 0 && kLag <= kStages);
  static_assert(kChunk == 64 || kChunk == 128);
  static_assert((kBlocks == 1 || kBlocks == 2) && (kTiles == 1 || kTiles == 2));
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* parts = ring + kStages * kStageBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(parts + 8 * kRowNormPartBytes);
  uint64_t* empty = full + kStages;
  uint64_t* begun = empty + kStages;        // the first consumer is kLag stages into the tile
  uint64_t* residual_full = begun + 1;      // [8 parts]
  uint64_t* part_full = residual_full + 8;  // [tile % 2][8 parts]: h, and the sums of all blocks
  // [tile % 2][8 parts][kBlocks][16]. Two suffice: a block sends those of a tile after its reader had the same part of
  // the tile before, with what the other block sent after its own reader had the part of the tile before that.
  float* sums = reinterpret_cast<float*>(part_full + 16);

  const int rank = kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int n = rank % kBlocks, m = rank / kBlocks;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Tiles of this block: kTiles * group + m, for every clusters-th group. The last may lie outside.
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int first = static_cast<int>(blockIdx.x) / kCluster;
  const int groups = static_cast<int>((shape.rows + 128 * kTiles - 1) / (128 * kTiles));
  const auto row_of = [&](int group) { return (group * kTiles + m) * 128; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8 * (kBlocks + kTiles - 1));
    }
    barrier_init(begun, 1);
    for (int i = 0; i < 8; ++i) barrier_init(&residual_full[i], 1);
    for (int i = 0; i < 16; ++i) barrier_init(&part_full[i], 1);
    barrier_init_fence();
  }
  if (threadIdx.x == 256) {
    tma_prefetch_map(&map_a);
    tma_prefetch_map(&map_w);
    tma_prefetch_map(&map_residual);
  }
  if constexpr (kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  wait_for_earlier();

  // What is left of a part: y, from h and the sums.
  const auto write_part = [&](int part, const RingPosition<2>& exchange, int group, uint32_t& y_largest) {
    float y_scale = 0;
    if constexpr (k8) {
      if (shape.y8 != nullptr) y_scale = shape.y_slot[0];
    }
    const int index = 8 * exchange.stage + part;
    const int first_row = row_of(group) + 16 * part;
    const auto rows = static_cast<int>(min(shape.rows - first_row, int64_t{16}));  // may be negative
    const float* const squares = sums + index * kBlocks * 16 + lane % 16;
    if constexpr (kBlocks > 1) {
      barrier_wait_cluster(&part_full[index], exchange.parity);
    } else {
      barrier_wait(&part_full[index], exchange.parity);
    }
    float total = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) total += squares[16 * block];
    const float rstd = rsqrtf(total / N + shape.eps);
    if (shape.rstd != nullptr && n == 0 && lane < 16 && lane < rows) shape.rstd[first_row + lane] = rstd;
    // A row of 512 bytes at a time, but four of them read before the first is written.
    const uint8_t* const from = parts + part * kRowNormPartBytes + lane / 8 * 2048;
    const int64_t to = int64_t{first_row} * N + 256 * n + 8 * lane;
#pragma unroll 1
    for (int four = 0; four < 16; four += 4) {
      uint4 h[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mix = (i & 1) << 2 | ((four + i) >> 1 & 3);
        h[i] = *reinterpret_cast<const uint4*>(from + (four + i) * 128 + 16 * (lane % 8 ^ mix));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = four + i;
        const float scale = __shfl_sync(0xffffffffu, rstd, row);
        const auto normalised = [&](uint32_t pair) {
          const float2 x = widen_pair<kInput>(pair);
          return round_pair<kInput>(x.x * scale, x.y * scale);
        };
        h[i] = {normalised(h[i].x), normalised(h[i].y), normalised(h[i].z), normalised(h[i].w)};
        if (row >= rows) continue;
        store_16(y + to + row * N, h[i]);
        if constexpr (k8) {
          if (shape.y8 != nullptr) {
            y_largest = larger_sizes(larger_sizes(y_largest, h[i].x), h[i].y);
            y_largest = larger_sizes(larger_sizes(y_largest, h[i].z), h[i].w);
            store_8(shape.y8 + to + row * N, quantize_pairs<kInput>(h[i].x, h[i].y, y_scale),
                    quantize_pairs<kInput>(h[i].z, h[i].w, y_scale));
          }
        }
      }
    }
  };

  if (warp >= 8) {
    registers_decrease<72>();
    if (warp == 8) {
      if (lane == 0) {
        constexpr int kRowsA = 128 / kBlocks, kRunsW = 8 / kTiles;
        constexpr int kElements = k8 ? kChunk : kChunk / 2;
        RingPosition<kStages> at;
        for (int group = first; group < groups; group += clusters) {
          const int row = row_of(group) + kRowsA * n;
          for (int k = 0; k < shape.blocks_k; ++k) {
            barrier_wait(&empty[at.stage], at.parity ^ 1);
            uint64_t* barrier = &full[at.stage];
            barrier_arrive_expect(barrier, kStageBytes);
            uint8_t* a = ring + at.stage * kStageBytes;
            uint8_t* w = a + 128 * kChunk + kRunsW * 32 * kChunk * m;
            if constexpr (kBlocks > 1) {
              const auto to = static_cast<uint16_t>(3 << 2 * m);
              tma_load_multicast(a + kRowsA * kChunk * n, &map_a, barrier, to, kElements * k, row);
            } else {
              tma_load(a, &map_a, barrier, kElements * k, row);
            }
            if constexpr (kTiles > 1) {
              const auto to = static_cast<uint16_t>((1 | 1 << kBlocks) << n);
              tma_load_multicast(w, &map_w, barrier, to, kElements * k, 0, 0, 0, 8 * n + kRunsW * m);
            } else {
              tma_load(w, &map_w, barrier, kElements * k, 0, 0, 0, 8 * n);
            }
            at.advance();
          }
        }
      }
      __syncwarp();
    } else {
      const int reader = warp - 9;
      const auto fetch = [&](int part, int group) {
        barrier_arrive_expect(&residual_full[part], kRowNormPartBytes);
        tma_load(parts + part * kRowNormPartBytes, &map_residual, &residual_full[part], 0, row_of(group) + 16 * part,
                 4 * n);
      };
      if (lane == 0 && first < groups) {
        for (int part = reader; part < 8; part += 3) fetch(part, first);
      }
      __syncwarp();
      uint32_t y_largest = 0;
      RingPosition<2> exchange;
      for (int group = first; group + clusters < groups; group += clusters, exchange.advance()) {
        for (int part = reader; part < 8; part += 3) {
          write_part(part, exchange, group, y_largest);
          fence_async_shared();
          __syncwarp();
          if (lane == 0) fetch(part, group + clusters);
        }
      }
      __syncwarp();
      if constexpr (k8) {
        if (shape.y8 != nullptr) raise_amax_of_pairs<kInput>(shape.y_slot, y_largest);
      }
    }
    if constexpr (kCluster > 1) cluster_arrive();
  } else {
    registers_increase<216>();
    const int consumer = warp / 4, g = lane / 4, q = lane % 4;
    const auto release = [&](int stage) {
      if constexpr (kCluster > 1) {
        // To whom that sends to this block: itself, the other of the row, that of the other tile.
        if (lane < kBlocks + kTiles - 1) barrier_arrive_remote(&empty[stage], rank ^ (lane == 2 ? kBlocks : lane));
      } else {
        if (lane == 0) barrier_arrive(&empty[stage]);
      }
    };
    uint8_t* const rows = parts + warp * kRowNormPartBytes;
    const int mix = (g & 1) << 2 | (g >> 1 & 3);
    // The 16 bytes of row g + 8 * i that hold columns 32 * run + 8 * q and the next seven, as the TMA places them of
    // the residual, and as h is placed, in the same 2048 bytes: there neighbouring rows stand in different banks.
    const auto residual_piece = [&](int run, int i) {
      const int chunk = (4 * (run % 2) + q) ^ g;
      return reinterpret_cast<const uint4*>(rows + run / 2 * 2048 + (g + 8 * i) * 128 + 16 * chunk);
    };
    const auto h_piece = [&](int run, int i) {
      const int chunk = (4 * (run % 2) + q) ^ mix;
      return reinterpret_cast<uint4*>(rows + run / 2 * 2048 + (g + 8 * i) * 128 + 16 * chunk);
    };
    // A tile of fewer stages than the ring has could be begun before the second consumer saw that the last one was:
    // parities tell only two neighbouring phases apart.
    const bool lags = kLag > 0 && shape.blocks_k >= kStages;
    uint32_t begun_parity = 0, residual_parity = 0;
    RingPosition<kStages> at;
    RingPosition<2> exchange{1, 1};  // advanced as a tile begins
    int last = -1;
    uint32_t y_largest = 0;
    float unscale = 1;
    if constexpr (k8) unscale = shape.a_slot[1] * shape.w_slot[1];
    for (int group = first; group < groups; group += clusters) {
      last = group;
      exchange.advance();
      if (lags && consumer == 1) {
        barrier_wait(begun, begun_parity);
        begun_parity ^= 1;
      }
      float d[128];
      int previous = 0;
      for (int k = 0; k < shape.blocks_k; ++k) {
        barrier_wait(&full[at.stage], at.parity);
        const uint8_t* stage = ring + at.stage * kStageBytes;
        const uint64_t a = descriptor_k_major<kChunk>(stage + 64 * kChunk * consumer);
        const uint64_t b = descriptor_k_major<kChunk>(stage + 128 * kChunk);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kChunk / 32; ++step) {
          Mma<256, kOperand>::shared(d, a + 2 * step, b + 2 * step, k > 0 || step > 0);
        }
        wgmma_commit();
        if (lags && k == kLag - 1 && threadIdx.x == 0) barrier_arrive(begun);
        if (k > 0) {
          wgmma_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      }
      // The residual, while the last products are on their way.
      barrier_wait(&residual_full[warp], residual_parity);
      residual_parity ^= 1;
      uint4 residual[8][2];
#pragma unroll
      for (int run = 0; run < 8; ++run) {
#pragma unroll
        for (int i = 0; i < 2; ++i) residual[run][i] = *residual_piece(run, i);
      }
      __syncwarp();
      wgmma_wait<0>();
      registers_fence(d);
      release(previous);

      float squares[2] = {0, 0};
#pragma unroll
      for (int run = 0; run < 8; ++run) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto add = [&](float low, float high, uint32_t other) {
            if constexpr (k8) low *= unscale, high *= unscale;
            const uint32_t sum = add_pairs<kInput>(round_pair<kInput>(low, high), other);
            const float2 wide = widen_pair<kInput>(sum);
            squares[i] += wide.x * wide.x;
            squares[i] += wide.y * wide.y;
            return sum;
          };
          const int of = 16 * run + 2 * i;
          uint4 h;
          h.x = add(d[of], d[of + 1], residual[run][i].x);
          h.y = add(d[of + 4], d[of + 5], residual[run][i].y);
          h.z = add(d[of + 8], d[of + 9], residual[run][i].z);
          h.w = add(d[of + 12], d[of + 13], residual[run][i].w);
          *h_piece(run, i) = h;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
      }
      const int index = 8 * exchange.stage + warp;
      if (q < 2) {
        float* const mine = sums + (index * kBlocks + n) * 16 + g + 8 * q;
        const float sum = q == 0 ? squares[0] : squares[1];
        *mine = sum;
        if constexpr (kBlocks > 1) store_remote_counted(mine, &part_full[index], rank ^ 1, sum);
      }
      __syncwarp();
      if (lane == 0) {
        if constexpr (kBlocks > 1) {
          barrier_arrive_expect(&part_full[index], 16 * 4);
        } else {
          barrier_arrive(&part_full[index]);
        }
      }
      __syncwarp();
    }
    // Nothing goes to other blocks any more. Of the last tile each warp writes its own part: three readers would have
    // several in turn.
    if constexpr (kCluster > 1) cluster_arrive();
    if (last >= 0) write_part(warp, exchange, last, y_largest);
    __syncwarp();
    if constexpr (k8) {
      if (shape.y8 != nullptr) raise_amax_of_pairs<kInput>(shape.y_slot, y_largest);
    }
  }
  // A block stays until the others of its cluster no longer write into its shared memory.
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_wait();
  }
#endif
}

// Clusters of a kernel that the device runs at a time.
template <class Kernel>
int resident_clusters(Kernel kernel, int cluster, int shared) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) != cudaSuccess) return 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  return error == cudaSuccess && clusters > 0 ? clusters : 1;
}

// Queues the kernel. `p`: LinearRmsNorm or LinearRmsNormFp8; `shape`: what only one of them has.
template <Input kInput, Input kOperand, int kBlocks, int kTiles, int kChunk, int kStages, int kLag, class Params>
cudaError_t start_rms_norm(const Params& p, RowNormShape shape, cudaStream_t stream) {
  constexpr MapElement kElement = kOperand == Input::e4m3 ? MapElement::bits8 : MapElement::bits16;
  constexpr int kCluster = kBlocks * kTiles, kShared = row_norm_shared_bytes(kStages, kChunk, kBlocks);
  static_assert(kShared <= 227 * 1024);
  CUtensorMap map_a, map_w, map_residual;
  cudaError_t error = encode_rows<kChunk>(map_a, p.x, p.rows, p.inner, 128 / kBlocks, kElement);
  if (error == cudaSuccess) {
    error = encode_permuted_rows<kChunk>(map_w, p.weight, p.width, p.inner, 8 / kTiles, kElement);
  }
  if (error == cudaSuccess) error = encode_column_chunks(map_residual, p.residual, p.rows, p.width, 16, 4);
  if (error != cudaSuccess) return error;
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>((p.inner * bytes_of(kElement) + kChunk - 1) / kChunk);
  shape.eps = p.eps;
  const auto kernel = linear_rms_norm_kernel<kInput, kOperand, kBlocks, kTiles, kChunk, kStages, kLag>;
  const int resident = [&] {
    if constexpr (kCluster <= 2) return multiprocessors() / kCluster;
    static const int clusters = resident_clusters(kernel, kCluster, kShared);
    return clusters;
  }();
  const auto groups = static_cast<int>((p.rows + 128 * kTiles - 1) / (128 * kTiles));
  return start(kernel, std::min(groups, resident) * kCluster, 384, kShared, kCluster, stream, map_a, map_w,
               map_residual, static_cast<uint16_t*>(p.y), shape);
}

}  // namespace hrm::ops::cuda::sm90
