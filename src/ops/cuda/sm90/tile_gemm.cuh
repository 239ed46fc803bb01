#pragma once
// Products with an epilogue: A (M, K) * W (N, K)^T in tiles of 128 rows x 256 columns, or fewer.
//
// Three warpgroups of a block, for as many tiles as the block gets:
// - Two consumers, 64 rows each, work on the tensor cores, put the rounded product into a staging buffer
//   and continue with the next tile.
// - Of the third, one thread starts the TMA's loads, and three warps read the staging buffers, do the rest of the work
//   and write to memory, while the tensor cores are busy with the next tile. (Not a fourth warpgroup: with more than
//   384 threads the compiler refuses a wgmma of 128 accumulators.)
// With a K of 512, a tile is multiplied in 5 us and its epilogue takes nearly as long; in turn they would cost twice.
//
// Op, the epilogue, is a plain struct.
//   kInput       type of the operands
//   kColumns     columns of a tile: 256; with kStores a multiple of 64 up to that
//   kOutput      type of the staged product, bf16 or f16; e4m3 operands have scales, x_slot[1] and weight_slot[1], by
//                which it is multiplied before it is rounded
//   kWeight      how W is in memory and in the stages
//   kBoxes       permuted rows are loaded in kBoxes boxes of 256 / kBoxes rows, the second `box_distance` runs of 32
//                rows after the first
//   kLastFirst   tiles come in reverse order (see launch.cuh)
//   kGrouped     every 128 rows have a weight of their own, of several that stand one below the other: see
//   tile_groups.h kStores      the product is all there is to do: the consumers let the TMA store what they staged, as
//   map_out says,
//                columns below `width`; run() is not needed
//   run(part, staging, wait, done), by a warp, for the 16 rows of a part: calls wait() before it reads the staging
//     buffer and done() when it has read it.

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/tile_draws.cuh"
#include "ops/cuda/sm90/tile_groups.h"
#include "ops/cuda/sm90/tile_order.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

enum class Weight {
  rows,           // (N, K)
  permuted_rows,  // (N, K), permuted on the way (elements.cuh)
  transposed      // (K, N)
};

struct TileShape {
  TileGroups groups;
  int64_t rows;
  int blocks_k;      // 128 bytes of K each; what is loaded beyond K is zero
  int slices;        // kColumns of N each
  int box_distance;  // see Op::kBoxes
  int band;          // see place_in_bands()
  uint32_t* draws;   // see next_tile()
};

// What a warp of the epilogue works on: rows first_row to first_row + 15, columns of one slice.
struct TilePart {
  int64_t first_row;
  int slice;
  int part;       // 0 to 7, which 16 rows of the tile
  int iteration;  // counts the block's tiles
};

template <class Op>
constexpr int kTileStageBytes = (128 + Op::kColumns) * 128;
template <class Op>
constexpr int kPartBytes = 16 * 2 * Op::kColumns;  // 16 rows of 16-bit elements
template <class Op>
constexpr int kStagingBytes = 4 * kPartBytes<Op>;  // for each consumer

// Chunk (16 bytes) c of row r in a staging buffer; neighbouring rows are in different banks.
__device__ inline const uint4* staged(const uint8_t* staging, int row, int chunk) {
  const int mix = (row & 1) << 2 | (row >> 1 & 3);
  return reinterpret_cast<const uint4*>(staging + row * 512) + (chunk ^ mix);
}

// Columns 8 * j to 8 * j + 15 of a warp's 16 rows, rounded; lane l says where row l % 16 of columns
// 8 * (j + l / 16) ... goes.
template <Input kOutput, int kSize>
__device__ inline void store_columns(void* row, const float (&d)[kSize], int j) {
  store_matrices(row, round_pair<kOutput>(d[4 * j], d[4 * j + 1]), round_pair<kOutput>(d[4 * j + 2], d[4 * j + 3]),
                 round_pair<kOutput>(d[4 * j + 4], d[4 * j + 5]), round_pair<kOutput>(d[4 * j + 6], d[4 * j + 7]));
}

template <class Op>
constexpr int tile_shared_bytes(int stages) {
  return 1024 + stages * kTileStageBytes<Op> + 2 * kStagingBytes<Op> + (2 * stages + 24) * 8 +
         static_cast<int>(sizeof(TileDraws));
}

template <class Op, int kStages>
__global__ void __launch_bounds__(384, 1)
    tile_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                const TileShape shape, const __grid_constant__ Op op) {
#if HRM_SM90A
  constexpr int kColumns = Op::kColumns, kStageBytes = kTileStageBytes<Op>;
  static_assert(kColumns == 256 || (Op::kStores && kColumns < 256 && kColumns % 64 == 0));
  static_assert(TileDraws::reach(kStages));
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* staging = ring + kStages * kStageBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(staging + 2 * kStagingBytes<Op>);
  uint64_t* empty = full + kStages;
  // For each 16 rows. A reader does not wait for every tile of the same rows, and the two parities of a barrier tell
  // only neighbouring tiles apart: with one barrier, a reader ahead of the others could take what was staged two tiles
  // ago for its own. With one for every second tile it must not come before the tile two before was staged, and cannot:
  // one of the parts that it has read before is of the tile before and of the same warpgroup, whose warps had all begun
  // that tile by then, either because the ring continued or by a barrier of their own.
  uint64_t* staging_full = empty + kStages;  // [tile % 2][16 rows]
  uint64_t* staging_empty = staging_full + 16;
  auto* const draws = reinterpret_cast<TileDraws*>(staging_empty + 8);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto blocks = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  int row_tiles = static_cast<int>((shape.rows + 127) / 128), tiles = row_tiles * shape.slices;
  const auto place = [&](int index) {
    const int tile = Op::kLastFirst ? tiles - 1 - index : index;
    return place_in_bands(tile, shape.slices, shape.band, row_tiles);
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8);
    }
    for (int i = 0; i < 16; ++i) barrier_init(&staging_full[i], 1);
    for (int i = 0; i < 8; ++i) barrier_init(&staging_empty[i], 1);
    draws->init();
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier();
  if constexpr (Op::kGrouped) {
    row_tiles = *shape.groups.ends / 128;
    tiles = row_tiles * shape.slices;
  }

  constexpr bool k8Bits = Op::kInput == Input::e4m3;
  constexpr int kBlockK = k8Bits ? 128 : 64;  // 128 bytes
  if (warp >= 8) {
    registers_decrease<136>();
    if (warp == 8) {
      if (lane == 0) {
        tma_prefetch_map(&map_a);
        tma_prefetch_map(&map_w);
        RingPosition<kStages> at;
        for (int turn = 0, index = first, next = 0; index < tiles; index = next) {
          next = next_tile(shape.draws, index, blocks);
          const TilePlace tile = place(index);
          const int row = tile.row * 128, slice = tile.slice;
          int weight_row = 0;
          if constexpr (Op::kGrouped) weight_row = shape.groups.tile_experts[tile.row] * shape.groups.weight_rows;
          for (int k = 0; k < shape.blocks_k; ++k) {
            barrier_wait(&empty[at.stage], at.parity ^ 1);
            uint64_t* barrier = &full[at.stage];
            barrier_arrive_expect(barrier, kStageBytes);
            uint8_t* a = ring + at.stage * kStageBytes;
            uint8_t* w = a + 128 * 128;
            tma_load(a, &map_a, barrier, kBlockK * k, row);
            if constexpr (Op::kWeight == Weight::transposed) {
              tma_load(w, &map_w, barrier, 0, weight_row + 64 * k, kColumns / 64 * slice);
            } else if constexpr (Op::kWeight == Weight::rows) {
              tma_load(w, &map_w, barrier, kBlockK * k, weight_row + kColumns * slice);
            } else {
#pragma unroll
              for (int box = 0; box < Op::kBoxes; ++box) {
                constexpr int kRuns = 8 / Op::kBoxes;
                tma_load(w + box * 32 * kRuns * 128, &map_w, barrier, kBlockK * k, 0, 0, 0,
                         weight_row / 32 + slice * kRuns + box * shape.box_distance);
              }
            }
            at.advance();
          }
          draws->put(++turn, next);
        }
      }
    } else if constexpr (!Op::kStores) {
      // The parts of all tiles in turn.
      const int reader = warp - 9;
      const auto locate = [&](int index, TilePart& where) {
        where.iteration = index / 8;
        where.part = index % 8;
        const int at = where.iteration == 0 ? first : draws->get(where.iteration);
        const TilePlace tile = place(at);
        where.first_row = int64_t{tile.row} * 128 + 16 * where.part;
        where.slice = tile.slice;
        return at < tiles;
      };
      TilePart where;
      for (int index = reader; locate(index, where); index += 3) {
        op.run(
            where, staging + kPartBytes<Op> * where.part,
            [&] { barrier_wait(&staging_full[8 * (where.iteration & 1) + where.part], where.iteration >> 1 & 1); },
            [&] {
              __syncwarp();
              if (lane == 0) barrier_arrive(&staging_empty[where.part]);
            });
      }
    }
  } else {
    registers_increase<184>();
    const int consumer = warp / 4, q = lane % 4;
    const int part = warp;  // of the tile's rows
    const auto release = [&](int stage) {
      if (lane == 0) barrier_arrive(&empty[stage]);
    };
    float scale = 1;
    if constexpr (k8Bits) scale = op.x_slot[1] * op.weight_slot[1];
    RingPosition<kStages> at;
    uint32_t iteration = 0;
    for (int turn = 0, index = first; index < tiles; index = draws->get(++turn)) {
      // A ring that holds a whole tile does not keep the warps together; see staging_full.
      if (!Op::kStores && shape.blocks_k <= kStages) {
        if (consumer == 0) {  // numbers that the compiler knows: else it sets aside all 16 barriers
          named_barrier(1, 128);
        } else {
          named_barrier(2, 128);
        }
      }
      float d[kColumns / 2];
      int previous = 0;
      for (int k = 0; k < shape.blocks_k; ++k) {
        barrier_wait(&full[at.stage], at.parity);
        const uint8_t* stage = ring + at.stage * kStageBytes;
        const uint64_t a = descriptor_k_major(stage + 64 * 128 * consumer);
        wgmma_fence();
        if constexpr (Op::kWeight == Weight::transposed) {
          const uint64_t b = descriptor_mn_major(stage + 128 * 128, 64 * 128);
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            Mma<kColumns, Op::kInput>::template shared<Major::k, Major::mn>(d, a + 2 * step, b + 128 * step,
                                                                            k > 0 || step > 0);
          }
        } else {
          const uint64_t b = descriptor_k_major(stage + 128 * 128);
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            Mma<kColumns, Op::kInput>::shared(d, a + 2 * step, b + 2 * step, k > 0 || step > 0);
          }
        }
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      registers_fence(d);
      release(previous);
      if constexpr (k8Bits) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) d[i] *= scale;
      }
      uint8_t* to = staging + kPartBytes<Op> * part;
      if constexpr (Op::kStores) {
        // Blocks of 16 rows x 128 bytes, with chunk c of row r at c ^ (r % 8), as the TMA reads them.
        if (lane == 0) tma_store_wait_read<0>();
        __syncwarp();
        uint8_t* line = to + lane % 16 * 128;
#pragma unroll
        for (int j = 0; j < kColumns / 8; j += 2) {
          const int chunk = (j % 8 + lane / 16) ^ (lane % 8);
          store_columns<Op::kOutput>(line + j / 8 * 2048 + 16 * chunk, d, j);
        }
        fence_async_shared();
        __syncwarp();
        const TilePlace tile = place(index);
        const int row = tile.row * 128 + 16 * part, column = tile.slice * kColumns;
        if (lane == 0) {
#pragma unroll
          for (int block = 0; block < kColumns / 64; ++block) {
            if (column + 64 * block < op.width) tma_store(&op.map_out, to + 2048 * block, column + 64 * block, row);
          }
          tma_store_commit();
        }
        __syncwarp();
      } else {
        if (iteration > 0) barrier_wait(&staging_empty[part], (iteration - 1) & 1);
        if constexpr (Op::kWeight == Weight::permuted_rows) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int run = 0; run < 8; ++run) {
              *const_cast<uint4*>(staged(to, lane / 4 + 8 * i, 4 * run + q)) = round_eight<Op::kOutput>(d, run, i);
            }
          }
        } else {
#pragma unroll
          for (int j = 0; j < 32; j += 2) {
            store_columns<Op::kOutput>(const_cast<uint4*>(staged(to, lane % 16, j + lane / 16)), d, j);
          }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&staging_full[8 * (iteration & 1) + part]);
        ++iteration;
      }
    }
    if constexpr (Op::kStores) {
      if (lane == 0) tma_store_wait_read<0>();
    }
  }
#endif
}

// Queues the kernel for A (rows, inner) and `slices` slices of kColumns columns. `groups` with kGrouped alone.
template <int kStages, class Op>
cudaError_t start_tiles(const CUtensorMap& map_a, const CUtensorMap& map_w, int64_t rows, int64_t inner, int64_t slices,
                        int64_t box_distance, const Op& op, cudaStream_t stream, const TileGroups& groups = {},
                        uint32_t* draws = nullptr) {
  constexpr int kBlockK = Op::kInput == Input::e4m3 ? 128 : 64;
  TileShape shape{};
  shape.groups = groups;
  shape.rows = rows;
  shape.blocks_k = static_cast<int>((inner + kBlockK - 1) / kBlockK);
  shape.slices = static_cast<int>(slices);
  shape.box_distance = static_cast<int>(box_distance);
  shape.band = tile_band(slices);
  shape.draws = draws;
  const int64_t tiles = (rows + 127) / 128 * slices;
  const auto blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors()));
  return start(tile_kernel<Op, kStages>, blocks, 384, tile_shared_bytes<Op>(kStages), 1, stream, map_a, map_w, shape,
               op);
}

}  // namespace hrm::ops::cuda::sm90
