#pragma once
// Products of up to 128 rows, out = x weight^T (+ residual) or gated, as decoding many answers at once has them.
//
// The product is transposed: 64 columns of the result, rows of the weight, are the rows of wgmma, and x's rows its
// columns. For some weights in 8 bits, a block has 128 columns by two warpgroups, so that x is read half as often. The
// blocks of a cluster share the summands of a tile, so that all multiprocessors read weights from the start. A block
// asks for all that its ring of stages has room for while the kernel in front still runs. Behind it come the parts of
// x, which are in the L2 cache. Each block sends its sums to the blocks that finish the rows: every ranks-th row is one
// rank's. Those add the parts in the order of ranks.
//
// A norm between two products needs no kernel of its own: the first one also writes its result times the norm's factors
// and, for each tile, the sum of the squares; the second one multiplies that and divides the sums.
//
// A weight in 8 bits stays bytes in shared memory. The warps that multiply widen it to x's type in registers, which
// wgmma takes as its first operand: the next ones while the tensor cores are busy with those before, and those of the
// first stage before x has come. A weight in e4m3 is multiplied as it is where x comes in pairs of e4m3 numbers
// (e4m3_pairs.h): the high and the low numbers of eight rows side by side. Then the kernel also makes the pairs of the
// product that follows.
//
// Loops are hardly unrolled, but those over a thread's registers. The kernels of a decoding step follow each other
// every few microseconds, and the instruction cache must have room for all of them.
//
// Blocks write into the shared memory of others when all of their cluster have begun (cluster_wait()), and the one that
// is written to stays until all that it expects has come. So nobody has to wait for the others' end before it leaves.

#include <algorithm>
#include <cstddef>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/core_matrices.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_adapter.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_columns.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_tiles.h"
#include "ops/quantized/cuda/weight8_widen.cuh"

namespace hrm::ops::cuda::sm90 {

constexpr int kGroupColumns = 64;  // of a warpgroup, rows of wgmma
constexpr int kGroupWarps = 4;
constexpr int kBoxBytes = 128;  // of a row of x in a box
constexpr int kSteps = kBoxBytes / 32;
constexpr int kStagesMost = 16, kRanksMost = 8;
constexpr int kAligned = 1024;  // of what the TMA swizzles
// A tile's summands are shared by as many blocks as make up to this many in all: three on two multiprocessors of an
// H200, each of which has room for two. With 128, clusters filled some multiprocessors and left others idle. It is no
// number of the device, which would change the sums.
constexpr int64_t kBlocks = 192;
constexpr int64_t kSummandsOfRank = 256;  // a rank with less would do little but wait

// What is multiplied: both of 16 bits, bytes of the weight that are widened for x, or bytes with E4m3Pairs.
enum class TilesInput { bits16, widened, pairs };

// A kind of block: its rows, a multiple of 8, and what multiplies. The weight is [gate | up] if it is gated.
template <int kRowsMost, int kWarpGroups, bool kIsGated, TilesInput kOf>
struct TilesBlock {
  static constexpr int kRows = kRowsMost, kGroups = kWarpGroups;
  static constexpr bool kGated = kIsGated;
  static constexpr bool kWidened = kOf == TilesInput::widened, kPairs = kOf == TilesInput::pairs;
  static constexpr bool kBits8 = kWidened || kPairs;
  static constexpr int kTile = kGroupColumns * kGroups;  // rows of the weight
  static constexpr int kColumns = kGated ? kTile / 2 : kTile;
  static constexpr int kMultiplying = kGroupWarps * kGroups;  // warps
  static constexpr int kTileThreads = 32 * kMultiplying;
  static constexpr int kThreads = kTileThreads + 32;  // one warp more loads
  static constexpr int kDepth = kBits8 ? 128 : 64;    // summands of a stage: 128 bytes of the weight's rows
  static constexpr int kBoxes = kWidened ? 2 : 1;     // of x in a stage
  static constexpr int kWeightBytes = kTile * 128;    // of a stage
  // Floats from one row of a block's sums to the next: neither what a warp writes of eight rows at once, nor 16 bytes
  // for each of eight threads, are twice in one bank.
  static constexpr int kPitch = kTile + 4;
  static constexpr int kOfMultiprocessor = kRows > 64 && (kGroups == 2 || kBits8) ? 1 : 2;  // blocks
  static constexpr int kBytesMost = 220 * 1024 / kOfMultiprocessor;
  // Sums of runs of columns that are under way at once: two, where a thread has registers for them.
  static constexpr int kRunsAtOnce = kGroups == 1 || kRows <= 16 ? 2 : 1;
  // Of x in a stage, where it has this many rows.
  __host__ __device__ static constexpr int box_bytes(int rows) { return (kPairs ? 2 : 1) * rows * kBoxBytes; }
  __host__ __device__ static constexpr int scale_bytes(int rows) {
    return kPairs ? kDepth / static_cast<int>(kPairsRun) * rows * 4 : 0;
  }
  __host__ __device__ static constexpr int stage_bytes(int rows) {
    return kWeightBytes + kBoxes * box_bytes(rows) + scale_bytes(rows);
  }
};

struct TilesShape {
  int ranks, stages;
  int x_rows;  // of a box, a multiple of 8
  bool near;   // an adapter's factors have room in shared memory
};

struct alignas(16) TilesBarriers {
  uint64_t full[kStagesMost], empty[kStagesMost];
  uint64_t weight[kStagesMost];  // a weight that is widened has come; `full` is then for x alone
  uint64_t arrived;              // what the cluster sends
  float rstd[kTileRowsMost];     // of the rows that this block finishes
};

__host__ __device__ constexpr int rows_of_rank(int rows, int ranks) {
  return (rows + ranks - 1) / ranks;
}
// What the ranks send, of the rows that a block finishes.
template <class Block>
__host__ __device__ constexpr int floats_of_ranks(const TilesShape& s) {
  return s.ranks > 1 ? s.ranks * rows_of_rank(s.x_rows, s.ranks) * Block::kTile : 0;
}
template <class Block>
constexpr int bytes_beside_stages(const TilesShape& s, int adapter_rank) {
  const int near = s.near ? (Block::kTile + kNearSlices * s.x_rows) * adapter_rank * 2 : 0;
  return floats_of_ranks<Block>(s) * 4 + static_cast<int>(sizeof(TilesBarriers)) + near + kAligned;
}

// 64 summands of a weight in 8 bits as wgmma's first operand: 64 rows by 16 summands for each step.
using Fragments = uint32_t[kSteps][4];

// stage: of this warpgroup, rows of 128 bytes, swizzled. A step's 16 summands are a chunk of 16 bytes, of which a
// thread needs two neighbours of the first eight and two of the others. The eight rows of a load are in different
// banks.
template <typename T>
__device__ inline void widen_box(Fragments& to, const uint8_t* stage, int box, Weight8Format format) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % kGroupWarps, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const uint8_t* const from = stage + (16 * warp + group) * 128 + part / 2 * 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint8_t* const chunk = from + ((box * kSteps + step) ^ group) * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[step][i] = *reinterpret_cast<const uint32_t*>(chunk + i % 2 * 8 * 128 + i / 2 * 8);
  }
  const auto widen_all = [&](auto widen_two, uint32_t selector) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[step][i] = widen_two(__byte_perm(to[step][i], 0, selector));
    }
  };
  if (format == Weight8Format::e4m3) {
    widen_all([](uint32_t two) { return widen_e4m3<T>(two); }, part % 2 == 0 ? 0x1404 : 0x3424);
  } else {
    widen_all([](uint32_t two) { return widen_int8<T>(two); }, part % 2 == 0 ? 0x4140 : 0x4342);
  }
}

// Block::kRows: of the product, at least x_rows. What it multiplies beyond those is whatever follows them and is read
// by nobody.
template <typename T, class Block>
__global__ void __launch_bounds__(Block::kThreads, Block::kOfMultiprocessor)
    skinny_gemm_tiles(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                      const cuda::SkinnyGemm p, const TilesShape shape) {
#if HRM_SM90A
  constexpr int kRows = Block::kRows, kTile = Block::kTile, kColumns = Block::kColumns, kPitch = Block::kPitch;
  constexpr int kMultiplying = Block::kMultiplying, kWeightBytes = Block::kWeightBytes;
  constexpr int kDepth = Block::kDepth, kBoxes = Block::kBoxes;
  constexpr bool kGated = Block::kGated, kWidened = Block::kWidened, kPairs = Block::kPairs;
  static_assert(!(kPairs && kGated) || kColumns % kPairsRun == 0);
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const x_ring = shared_raw + (-shared_address(shared_raw) & (kAligned - 1));
  const int box_bytes = Block::box_bytes(shape.x_rows), x_bytes = kBoxes * box_bytes;
  const int scale_bytes = Block::scale_bytes(shape.x_rows);
  uint8_t* const w_ring = x_ring + shape.stages * x_bytes;
  [[maybe_unused]] uint8_t* const scale_ring = w_ring + shape.stages * kWeightBytes;
  float* const of_ranks = reinterpret_cast<float*>(w_ring + shape.stages * (kWeightBytes + scale_bytes));
  const int ranks = shape.ranks, most_rows = rows_of_rank(shape.x_rows, ranks);
  auto* const barriers = reinterpret_cast<TilesBarriers*>(of_ranks + floats_of_ranks<Block>(shape));
  T* const near = shape.near ? reinterpret_cast<T*>(barriers + 1) : nullptr;
  float* const sums = reinterpret_cast<float*>(x_ring);  // when the stages are used up
  float* const adapted = sums + shape.x_rows * kPitch;   // of the rows that this block finishes

  const int rank = ranks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = static_cast<int>(p.rows), width = static_cast<int>(p.width), inner = static_cast<int>(p.inner);
  const int own_rows = (rows - rank + ranks - 1) / ranks;
  // row / ranks, by a product that is exact for as few rows as there are.
  const uint32_t inverse = 65535 / ranks + 1;
  const auto of_rank = [&](int row) { return static_cast<int>(static_cast<uint32_t>(row) * inverse >> 16); };
  const int first_column = static_cast<int>(blockIdx.x) / ranks * kColumns;
  const int depths = (inner + kDepth - 1) / kDepth;
  const int begin = depths * rank / ranks, count = depths * (rank + 1) / ranks - begin;

  const auto load_weight = [&](int stage, int depth) {
    uint8_t* const to = w_ring + stage * kWeightBytes;
    uint64_t* const barrier = kWidened ? &barriers->weight[stage] : &barriers->full[stage];
    const int summand = (begin + depth) * kDepth;
    tma_load(to, &map_w, barrier, summand, first_column);
    if constexpr (kGated) tma_load(to + kWeightBytes / 2, &map_w, barrier, summand, width + first_column);
  };
  const auto expect = [&](int stage) {
    barrier_arrive_expect(&barriers->full[stage], x_bytes + scale_bytes + (kWidened ? 0 : kWeightBytes));
    if constexpr (kWidened) barrier_arrive_expect(&barriers->weight[stage], kWeightBytes);
  };
  const auto load_x = [&](int stage, int depth) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      tma_load(x_ring + stage * x_bytes + box * box_bytes, &map_x, &barriers->full[stage],
               (begin + depth) * kDepth + box * (kDepth / kBoxes), 0);
    }
    if constexpr (kPairs) {
      const auto* const from = reinterpret_cast<const uint8_t*>(p.x_pairs.scales) + (begin + depth) * scale_bytes;
      bulk_load(scale_ring + stage * scale_bytes, from, scale_bytes, &barriers->full[stage]);
    }
  };
  const int at_once = min(count, shape.stages);
  if (warp == kMultiplying && lane == 0) {
#pragma unroll 1
    for (int stage = 0; stage < shape.stages; ++stage) {
      barrier_init(&barriers->full[stage], 1);
      barrier_init(&barriers->empty[stage], kMultiplying);
      if constexpr (kWidened) barrier_init(&barriers->weight[stage], 1);
    }
    barrier_init(&barriers->arrived, 1);
    barrier_init_fence();
    if (ranks > 1) barrier_arrive_expect(&barriers->arrived, ranks * own_rows * kTile * 4);
#pragma unroll 1
    for (int depth = 0; depth < at_once; ++depth) {
      expect(depth);
      if (p.steady) load_weight(depth, depth);
    }
  }
  __syncwarp();
  if (ranks > 1) cluster_arrive_relaxed();
  __syncthreads();

  // The next kernel loads its weight, while this one waits for x.
  if (p.steady) let_next_begin();
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t own_rows_of_weight = warp / kGroupWarps * (kWeightBytes / Block::kGroups);  // where they begin
  // Of a weight that is widened: what the first and the second box of x are multiplied with.
  [[maybe_unused]] Fragments first, second;
  [[maybe_unused]] const auto widen = [&](Fragments& to, int of_stage, int box) {
    widen_box<T>(to, w_ring + of_stage * kWeightBytes + own_rows_of_weight, box, p.format);
  };
  const TilesAdapter<T, Block> adapter{p.adapter, thread, first_column, width, rows, near, shape.x_rows};
  if (warp < kMultiplying) {
    adapter.ask_for_b();
    if constexpr (kWidened) {
      barrier_wait(&barriers->weight[0], 0);
      widen(first, 0, 0);
      widen(second, 0, 1);
    }
  }
  wait_for_earlier();

  if (warp == kMultiplying) {
    if (lane == 0) {
#pragma unroll 1
      for (int depth = 0; depth < at_once; ++depth) {
        if (!p.steady) load_weight(depth, depth);
        load_x(depth, depth);
      }
      int stage = 0;
      uint32_t parity = 0;
#pragma unroll 1
      for (int depth = at_once; depth < count; ++depth) {
        barrier_wait(&barriers->empty[stage], parity);
        expect(stage);
        load_weight(stage, depth);
        load_x(stage, depth);
        if (++stage == shape.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
    if (ranks > 1) cluster_wait();
    return;
  }

  adapter.ask_for_u();
  copy_async_commit();
  if (thread < own_rows) {
    float rstd = 1;
    if (p.x_squares != nullptr) {
      const int parts = squares_of(inner);
      const float* const from = p.x_squares + int64_t{rank + thread * ranks} * parts;
      float sum = 0;
#pragma unroll 16
      for (int i = 0; i < parts; ++i) sum += from[i];
      rstd = rsqrtf(sum / static_cast<float>(inner) + p.eps);
    }
    barriers->rstd[thread] = rstd;
  }
  // What the end needs of other kernels and of memory, while x is under way.
  constexpr int kQuads = kColumns / 4;
  const int first_task_row = thread / kQuads;
  SkinnyColumns<T, Block> columns{p, first_column + thread % kQuads * 4, shape.x_rows};
  columns.load();
  uint2 added{};
  if (first_task_row < own_rows) added = columns.residual(rank + first_task_row * ranks);
  __syncwarp();

  float d[kRows / 2];
  if constexpr (kPairs) {
#pragma unroll
    for (float& sum : d) sum = 0;
  }
  int stage = 0, before = 0;
  uint32_t parity = 0;
  for (int depth = 0; depth < count; ++depth) {
    barrier_wait(&barriers->full[stage], parity);
    const uint64_t x = descriptor_k_major(x_ring + stage * x_bytes);
    const bool last = stage + 1 == shape.stages;
    const int next = last ? 0 : stage + 1;
    const uint32_t next_parity = last ? parity ^ 1 : parity;
    if constexpr (kPairs) {
      // Sums of runs of columns, which are multiplied with the run's scale while the next ones are made.
      const uint64_t w = descriptor_k_major(w_ring + stage * kWeightBytes + own_rows_of_weight);
      const auto* const scales = reinterpret_cast<const float*>(scale_ring + stage * scale_bytes);
      constexpr int kRuns = kDepth / static_cast<int>(kPairsRun), kRunSteps = kSteps / kRuns,
                    kAtOnce = Block::kRunsAtOnce;
      float of_run[kAtOnce][kRows];
      const auto multiply_run = [&](int run) {
        wgmma_fence();
#pragma unroll
        for (int step = run * kRunSteps; step < (run + 1) * kRunSteps; ++step) {
          Mma<2 * kRows, Input::e4m3>::shared(of_run[run % kAtOnce], w + 2 * step, x + 2 * step,
                                              step > run * kRunSteps);
        }
        wgmma_commit();
      };
      const auto add_run = [&](int run) {
        float(&sums_of)[kRows] = of_run[run % kAtOnce];
        registers_fence(sums_of);
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          if (j * 8 >= shape.x_rows) break;
          const float2 by = *reinterpret_cast<const float2*>(scales + run * shape.x_rows + 8 * j + 2 * (lane % 4));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float both = fmaf(sums_of[8 * j + 4 + i], 0.0625f, sums_of[8 * j + i]);
            d[4 * j + i] = fmaf(both, i % 2 == 0 ? by.x : by.y, d[4 * j + i]);
          }
        }
      };
      static_assert(kRuns == 2);
      multiply_run(0);
      if constexpr (kAtOnce == 2) multiply_run(1);
      wgmma_wait<kAtOnce - 1>();
      add_run(0);
      if constexpr (kAtOnce == 1) multiply_run(1);
      wgmma_wait<0>();
      add_run(1);
      __syncwarp();
      if (lane == 0) barrier_arrive(&barriers->empty[stage]);
    } else if constexpr (kWidened) {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Mma<kRows, kInputOf<T>>::registers(d, first[step], x + 2 * step, depth > 0 || step > 0);
      }
      wgmma_commit();
      if (depth > 0) {
        wgmma_wait<1>();
        if (lane == 0) barrier_arrive(&barriers->empty[before]);
        widen(second, stage, 1);
      }
      const uint64_t x_second = x + box_bytes / 16;
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Mma<kRows, kInputOf<T>>::registers(d, second[step], x_second + 2 * step, true);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (depth + 1 < count) {
        barrier_wait(&barriers->weight[next], next_parity);
        widen(first, next, 0);
      }
    } else {
      const uint64_t w = descriptor_k_major(w_ring + stage * kWeightBytes + own_rows_of_weight);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Mma<kRows, kInputOf<T>>::shared(d, w + 2 * step, x + 2 * step, depth > 0 || step > 0);
      }
      wgmma_commit();
      if (depth > 0) {
        wgmma_wait<1>();
        if (lane == 0) barrier_arrive(&barriers->empty[before]);
      }
    }
    before = stage;
    stage = next;
    parity = next_parity;
  }
  if constexpr (!kPairs) {
    wgmma_wait<0>();
    registers_fence(d);
  }

  copy_async_wait<0>();
  named_barrier(1, Block::kTileThreads);  // all have read the stages
  const int group = lane / 4, part = lane % 4;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (j * 8 >= shape.x_rows) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sums[(8 * j + 2 * part + e) * kPitch + 16 * warp + group + 8 * i] = d[4 * j + 2 * i + e];
      }
    }
  }
  if (p.adapter.slices > 0) {
    const int of[2] = {16 * warp + group, 16 * warp + group + 8};
    float sum[kRows / 8][4] = {};
    adapter.sums(sum, of);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * j + 2 * part + e, own = of_rank(row);
        if (row >= rows || own * ranks + rank != row) continue;
        adapted[own * kPitch + of[0]] = sum[j][e];
        adapted[own * kPitch + of[1]] = sum[j][2 + e];
      }
    }
  }
  named_barrier(1, Block::kTileThreads);
  const float* parts = sums;
  int pitch = kPitch;
  if (ranks > 1) {
    cluster_wait();
#pragma unroll 1
    for (int i = thread; i < rows * (kTile / 4); i += Block::kTileThreads) {
      const int row = i / (kTile / 4), quad = i % (kTile / 4) * 4;
      const uint4 bits = *reinterpret_cast<const uint4*>(&sums[row * kPitch + quad]);
      const int own = of_rank(row);
      float* const to = of_ranks + (rank * most_rows + own) * kTile + quad;
      store_16_remote(to, &barriers->arrived, row - own * ranks, bits);
    }
    if (own_rows <= 0) return;
    barrier_wait_cluster(&barriers->arrived, 0);
    parts = of_ranks;
    pitch = kTile;
  }
#pragma unroll 1
  for (int of_row = first_task_row; of_row < own_rows; of_row += Block::kTileThreads / kQuads) {
    const auto total = [&](int column) {
      float4 value{};
#pragma unroll 2
      for (int other = 0; other < ranks; ++other) {
        const float4 more = *reinterpret_cast<const float4*>(parts + (other * most_rows + of_row) * pitch + column);
        value = {value.x + more.x, value.y + more.y, value.z + more.z, value.w + more.w};
      }
      return value;
    };
    const int column = thread % kQuads * 4;
    const auto more = [&](int of) {
      return p.adapter.slices == 0 ? float4{} : *reinterpret_cast<const float4*>(adapted + of_row * kPitch + of);
    };
    const int row = rank + of_row * ranks;
    const uint2 beside = of_row == first_task_row ? added : columns.residual(row);
    if constexpr (kGated) {
      columns.finish_gated(row, barriers->rstd[of_row], total(column), total(kColumns + column), more(column),
                           more(kColumns + column));
    } else {
      columns.finish(row, barriers->rstd[of_row], total(column), more(column), beside);
    }
  }
#endif
}

template <typename T, class Block>
cudaError_t start_block(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  constexpr int kColumns = Block::kColumns, kDepth = Block::kDepth;
  const int64_t tiles = (p.width + kColumns - 1) / kColumns, depths = (p.inner + kDepth - 1) / kDepth;
  TilesShape shape{1, 0, static_cast<int>((p.rows + 7) / 8 * 8), false};
  shape.ranks = static_cast<int>(
      std::clamp(std::min(kBlocks / tiles, depths * kDepth / kSummandsOfRank), int64_t{1}, int64_t{kRanksMost}));
  // The sums of all rows, and what an adapter adds to some, have room in the stages, too.
  const int stage_bytes = Block::stage_bytes(shape.x_rows);
  const bool adapts = p.adapter.slices > 0;
  const int sums = shape.x_rows + (adapts ? rows_of_rank(shape.x_rows, shape.ranks) : 0);
  const int least = std::max(2, (sums * Block::kPitch * 4 + stage_bytes - 1) / stage_bytes);
  const auto needed = std::max(int64_t{least}, (depths + shape.ranks - 1) / shape.ranks);
  const auto beside = [&] { return bytes_beside_stages<Block>(shape, p.adapter.rank); };
  const auto stages = [&] {
    return static_cast<int>(
        std::min({needed, int64_t{kStagesMost}, int64_t{(Block::kBytesMost - beside()) / stage_bytes}}));
  };
  // Near factors of an adapter are worth less than a stage, where there are few.
  constexpr int kEnough = 4;
  const int alone = stages();
  shape.near = adapts;
  if (stages() < std::min(alone, kEnough)) shape.near = false;
  shape.stages = stages();
  if (shape.stages < least) return cudaErrorInvalidValue;
  CUtensorMap map_x, map_w;
  cudaError_t error = Block::kPairs ? encode_rows(map_x, p.x_pairs.values, 2 * shape.x_rows, p.inner, 2 * shape.x_rows,
                                                  MapElement::bits8)
                                    : encode_rows(map_x, p.x, p.rows, p.inner, shape.x_rows);
  const int64_t weight_rows = Block::kGated ? 2 * p.width : p.width;
  if (error == cudaSuccess) {
    error = encode_rows(map_w, p.weight, weight_rows, p.inner, kColumns,
                        Block::kBits8 ? MapElement::bits8 : MapElement::bits16);
  }
  const auto kernel = skinny_gemm_tiles<T, Block>;
  if (error == cudaSuccess) error = want_shared_memory(kernel);
  if (error != cudaSuccess) return error;
  return start(kernel, static_cast<int>(tiles) * shape.ranks, Block::kThreads, shape.stages * stage_bytes + beside(),
               shape.ranks, stream, map_x, map_w, p, shape);
}

template <typename T, int kRows, int kGroups, TilesInput kOf>
cudaError_t start_groups(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  return p.gated ? start_block<T, TilesBlock<kRows, kGroups, true, kOf>>(p, stream)
                 : start_block<T, TilesBlock<kRows, kGroups, false, kOf>>(p, stream);
}

// Tiles of two warpgroups, and whether ranks can make enough blocks of them.
inline int64_t wide_tiles(const cuda::SkinnyGemm& p) {
  constexpr int64_t kWide = 2 * kGroupColumns;
  return (p.width * (p.gated ? 2 : 1) + kWide - 1) / kWide;
}
inline bool enough_wide_tiles(const cuda::SkinnyGemm& p) {
  return wide_tiles(p) * kRanksMost >= kBlocks;
}

template <typename T, int kRows, TilesInput kOf>
cudaError_t start_rows(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  if constexpr (kOf == TilesInput::widened) {
    // Where tiles alone do not make enough.
    if (enough_wide_tiles(p) && wide_tiles(p) < kBlocks) return start_groups<T, kRows, 2, kOf>(p, stream);
  }
  return start_groups<T, kRows, 1, kOf>(p, stream);
}

template <TilesInput kOf>
cudaError_t start_tiles(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (p.rows <= 32) return start_rows<T, 32, kOf>(p, stream);
    if (p.rows <= 64) return start_rows<T, 64, kOf>(p, stream);
    if (p.rows <= 96) return start_rows<T, 96, kOf>(p, stream);
    return start_rows<T, 128, kOf>(p, stream);
  });
}

}  // namespace hrm::ops::cuda::sm90
