#pragma once
// Products of up to 128 rows, out = x weight^T (+ residual) or gated, as decoding many answers at once has them.
//
// The product is transposed: 64 columns of the result, rows of the weight, are the rows of wgmma, and x's rows its
// columns. The blocks of a cluster share the summands of a tile, so that all multiprocessors read weights from the
// start, and a block asks for all that its ring of stages has room for while the kernel in front still runs. Behind it
// come the parts of x, which are in the L2 cache. Each block sends its sums to the blocks that finish the rows, rank
// r rows r, r + ranks, ..., and those add the parts in the order of ranks.
//
// A norm between two products needs no kernel of its own: the first one also writes its result times the norm's factors
// and, for each tile, the sum of the squares; the second one multiplies that and divides the sums.
//
// A weight in 8 bits comes as bytes, into half of a stage. The warps that multiply widen it to x's type in the same
// place, as wgmma reads it. What a block asked for at the start is widened while the kernel in front still runs, so
// that only the multiplication is left once x has come. Later stages are widened while the tensor cores are busy with
// the one before.
//
// Blocks write into the shared memory of others when all of their cluster have begun (cluster_wait()), and the one that
// is written to stays until all that it expects has come. So nobody has to wait for the others before it leaves.

#include <algorithm>
#include <cstddef>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/linear/cuda/skinny_gemm.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_tiles.h"
#include "ops/quantized/cuda/weight8_widen.cuh"

namespace hrm::ops::cuda::sm90 {

constexpr int kTile = 64;   // columns of a cluster; gated, half of them gates, half what they are for
constexpr int kDepth = 64;  // summands of a stage
constexpr int kWeightBytes = kTile * kDepth * 2;
constexpr int kBits8Bytes = kTile * kDepth;        // of a stage of a weight in 8 bits, when it comes
constexpr int kMultiplying = 4;                    // warps
constexpr int kThreads = 32 * (kMultiplying + 1);  // one warp more loads
constexpr int kStagesMost = 16, kRanksMost = 8;
// Floats from one row of a block's sums to the next: neither what a warp writes of eight rows at once, nor 16 bytes for
// each of eight threads, are twice in one bank. (Other architectures' kernels are empty.)
[[maybe_unused]] constexpr int kPitch = kTile + 4;
constexpr int kAligned = 1024;           // of what the TMA swizzles
constexpr int kBlockBytes = 110 * 1024;  // two blocks of a multiprocessor
// More blocks than that are not made of a tile's summands; no number of the device, which would change the sums.
constexpr int64_t kBlocks = 128;
constexpr int64_t kDepthsOfRank = 4;  // a rank with less would do little but wait

struct TilesShape {
  int ranks, stages;
  int x_rows;  // of a box, a multiple of 8
};

struct TilesBarriers {
  uint64_t full[kStagesMost], empty[kStagesMost];
  uint64_t bytes[kStagesMost];  // a weight in 8 bits has come; `full` is then for x alone
  uint64_t arrived;             // what the cluster sends
  float rstd[kTileRowsMost];    // of the rows that this block finishes
};

__host__ __device__ constexpr int tiles_of(int width) {
  return (width + kTile - 1) / kTile;
}
static_assert(tiles_of(65) == square_parts(65), "a sum of squares for each tile");
__host__ __device__ constexpr int rows_of_rank(int rows, int ranks) {
  return (rows + ranks - 1) / ranks;
}
constexpr int bytes_beside_stages(const TilesShape& s) {
  return s.ranks * rows_of_rank(s.x_rows, s.ranks) * kTile * 4 + static_cast<int>(sizeof(TilesBarriers)) + kAligned;
}

// 32 bytes of a stage, which are those of a thread: 16 summands of two rows.
struct BytesTaken {
  uint4 run[2];
};

template <typename T>
__device__ inline uint4 widen_eight(uint32_t low, uint32_t high, Weight8Format format) {
  const bool floats = format == Weight8Format::e4m3;
  const uint2 a = floats ? widen<T, Weight8Format::e4m3>(low) : widen<T, Weight8Format::int8>(low);
  const uint2 b = floats ? widen<T, Weight8Format::e4m3>(high) : widen<T, Weight8Format::int8>(high);
  return {a.x, a.y, b.x, b.y};
}

// Four threads have a row. Both loads and stores of eight threads are in different banks.
__device__ inline BytesTaken load_bytes(const uint8_t* stage) {
  BytesTaken runs;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    runs.run[i] = *reinterpret_cast<const uint4*>(stage + 16 * (static_cast<int>(threadIdx.x) + 128 * i));
  }
  return runs;
}

// Into the layout of descriptor_k_major().
template <typename T>
__device__ inline void store_widened(uint8_t* stage, const BytesTaken& runs, Weight8Format format) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = static_cast<int>(threadIdx.x) / 4 + 32 * i, chunk = static_cast<int>(threadIdx.x) % 4 * 2;
    const uint4 v = runs.run[i];
    uint8_t* const to = stage + row * 128;
    *reinterpret_cast<uint4*>(to + (chunk ^ row % 8) * 16) = widen_eight<T>(v.x, v.y, format);
    *reinterpret_cast<uint4*>(to + ((chunk + 1) ^ row % 8) * 16) = widen_eight<T>(v.z, v.w, format);
  }
  fence_async_shared();
}

// What an adapter adds to four neighbouring columns of a row.
template <typename T>
__device__ inline float4 adapter_sums(const SkinnyAdapter& a, int64_t row, int column) {
  float sum[4] = {};
  for (int i = 0; i < a.slices; ++i) {
    const SkinnyAdapterSlice& s = a.slice[i];
    if (column < s.out || column >= s.out + s.columns) continue;
    const T* const u = static_cast<const T*>(a.u) + (row * a.slices + i) * a.rank;
    const T* const B = static_cast<const T*>(a.B) + int64_t{s.first + column - s.out} * a.rank;
    for (int k = 0; k < a.rank; k += 8) {
      const uint4 left = *reinterpret_cast<const uint4*>(u + k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint4 right = *reinterpret_cast<const uint4*>(B + n * a.rank + k);
        const auto add = [&](uint32_t x, uint32_t y) {
          const float2 v = widen_pair<kInputOf<T>>(x), w = widen_pair<kInputOf<T>>(y);
          sum[n] = __fmaf_rn(v.y, w.y, __fmaf_rn(v.x, w.x, sum[n]));
        };
        add(left.x, right.x);
        add(left.y, right.y);
        add(left.z, right.z);
        add(left.w, right.w);
      }
    }
  }
  return {__fmul_rn(sum[0], a.scale), __fmul_rn(sum[1], a.scale), __fmul_rn(sum[2], a.scale),
          __fmul_rn(sum[3], a.scale)};
}

// kRows: of the product, at least x_rows. What it multiplies beyond those is whatever follows them and is read by
// nobody.
template <typename T, int kRows, bool kGated, bool kBits8>
__global__ void __launch_bounds__(kThreads, 2)
    skinny_gemm_tiles(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                      const cuda::SkinnyGemm p, const TilesShape shape) {
#if HRM_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const x_ring = shared_raw + (-shared_address(shared_raw) & (kAligned - 1));
  const int x_bytes = shape.x_rows * 128;
  uint8_t* const w_ring = x_ring + shape.stages * x_bytes;
  float* const of_ranks = reinterpret_cast<float*>(w_ring + shape.stages * kWeightBytes);
  const int ranks = shape.ranks, most_rows = rows_of_rank(shape.x_rows, ranks);
  auto* const barriers = reinterpret_cast<TilesBarriers*>(of_ranks + ranks * most_rows * kTile);
  float* const sums = reinterpret_cast<float*>(x_ring);  // when the stages are used up

  const int rank = ranks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = static_cast<int>(p.rows), width = static_cast<int>(p.width), inner = static_cast<int>(p.inner);
  const int own_rows = (rows - rank + ranks - 1) / ranks;
  constexpr int kColumns = kGated ? kTile / 2 : kTile;
  const int first_column = static_cast<int>(blockIdx.x) / ranks * kColumns;
  const int depths = (inner + kDepth - 1) / kDepth;
  const int begin = depths * rank / ranks, count = depths * (rank + 1) / ranks - begin;

  constexpr int kLoadedBytes = kBits8 ? kBits8Bytes : kWeightBytes;
  const auto load_weight = [&](int stage, int depth) {
    uint8_t* const to = w_ring + stage * kWeightBytes;
    uint64_t* const barrier = kBits8 ? &barriers->bytes[stage] : &barriers->full[stage];
    const int summand = (begin + depth) * kDepth;
    tma_load(to, &map_w, barrier, summand, first_column);
    if constexpr (kGated) tma_load(to + kLoadedBytes / 2, &map_w, barrier, summand, width + first_column);
  };
  const auto expect = [&](int stage) {
    barrier_arrive_expect(&barriers->full[stage], x_bytes + (kBits8 ? 0 : kWeightBytes));
    if constexpr (kBits8) barrier_arrive_expect(&barriers->bytes[stage], kBits8Bytes);
  };
  const auto load_x = [&](int stage, int depth) {
    tma_load(x_ring + stage * x_bytes, &map_x, &barriers->full[stage], (begin + depth) * kDepth, 0);
  };
  const int at_once = min(count, shape.stages);
  if (warp == kMultiplying && lane == 0) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      barrier_init(&barriers->full[stage], 1);
      barrier_init(&barriers->empty[stage], kMultiplying);
      if constexpr (kBits8) barrier_init(&barriers->bytes[stage], 1);
    }
    barrier_init(&barriers->arrived, 1);
    barrier_init_fence();
    if (ranks > 1) barrier_arrive_expect(&barriers->arrived, ranks * own_rows * kTile * 4);
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
  [[maybe_unused]] BytesTaken taken{};
  [[maybe_unused]] int take_stage = 0, put_stage = 0;
  [[maybe_unused]] uint32_t take_parity = 0;
  // A stage's bytes into registers. All threads must have taken theirs before one puts numbers into their place.
  [[maybe_unused]] const auto take = [&] {
    barrier_wait(&barriers->bytes[take_stage], take_parity);
    taken = load_bytes(w_ring + take_stage * kWeightBytes);
    if (++take_stage == shape.stages) {
      take_stage = 0;
      take_parity ^= 1;
    }
  };
  [[maybe_unused]] const auto put = [&](const BytesTaken& runs) {
    store_widened<T>(w_ring + put_stage * kWeightBytes, runs, p.format);
    if (++put_stage == shape.stages) put_stage = 0;
  };
  if (warp < kMultiplying) {
    constexpr int kHalves = kGated ? 2 : 1;
    if (thread < kHalves * p.adapter.slices) {  // its B, of this block's columns
      const SkinnyAdapterSlice& s = p.adapter.slice[thread / kHalves];
      const int first = first_column + (thread % kHalves) * width;
      const int from = max(first, s.out),
                end = min(min(first + kColumns, (thread % kHalves + 1) * width), s.out + s.columns);
      if (from < end) {
        const int64_t row = s.first + from - s.out;
        ask_for(static_cast<const T*>(p.adapter.B) + row * p.adapter.rank,
                int64_t{end - from} * p.adapter.rank * static_cast<int64_t>(sizeof(T)));
      }
    }
    if constexpr (kBits8) {
      take();
      for (int depth = 0; depth < at_once; ++depth) {
        named_barrier(1, 32 * kMultiplying);
        const BytesTaken runs = taken;
        if (depth + 1 < at_once) take();
        put(runs);
      }
    }
  }
  wait_for_earlier();

  if (warp == kMultiplying) {
    if (lane == 0) {
      for (int depth = 0; depth < at_once; ++depth) {
        if (!p.steady) load_weight(depth, depth);
        load_x(depth, depth);
      }
      int stage = 0;
      uint32_t parity = 0;
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
    return;
  }

  if (thread < own_rows) {
    float rstd = 1;
    if (p.x_squares != nullptr) {
      const int parts = tiles_of(inner);
      const float* const from = p.x_squares + int64_t{rank + thread * ranks} * parts;
      float sum = 0;
#pragma unroll 16
      for (int i = 0; i < parts; ++i) sum += from[i];
      rstd = rsqrtf(sum / static_cast<float>(inner) + p.eps);
    }
    barriers->rstd[thread] = rstd;
  }
  // What the end needs of other kernels and of memory, while x is under way.
  const auto residual = [&](int of_row, int column) {
    const auto* const from = static_cast<const T*>(p.residual) + int64_t{rank + of_row * ranks} * width + column;
    return *reinterpret_cast<const uint2*>(from);
  };
  constexpr int kQuads = kColumns / 4;
  const int first_task_row = thread / kQuads, task_column = first_column + thread % kQuads * 4;
  const bool inside = task_column < width;
  uint2 added{};
  if (!kGated && p.residual != nullptr && inside && first_task_row < own_rows) {
    added = residual(first_task_row, task_column);
  }
  float4 adapted{}, adapted_up{};
  const auto adapt = [&](int of_row) {
    if (p.adapter.slices == 0 || !inside || of_row >= own_rows) return;
    adapted = adapter_sums<T>(p.adapter, rank + of_row * ranks, task_column);
    if constexpr (kGated) adapted_up = adapter_sums<T>(p.adapter, rank + of_row * ranks, width + task_column);
  };
  adapt(first_task_row);
  float4 scale{1, 1, 1, 1}, scale_up = scale;  // of the weight's rows
  if (kBits8 && inside) {
    scale = *reinterpret_cast<const float4*>(p.scales + task_column);
    if constexpr (kGated) scale_up = *reinterpret_cast<const float4*>(p.scales + width + task_column);
  }
  float4 factor{};  // of the norm that follows
  if (!kGated && p.next_norm != nullptr && inside) factor = *reinterpret_cast<const float4*>(p.next_norm + task_column);
  __syncwarp();

  float d[kRows / 2] = {};
  int stage = 0, before = 0;
  uint32_t parity = 0;
  for (int depth = 0; depth < count; ++depth) {
    // All have put this stage, and taken the next one if it is put below.
    if (kBits8 && (depth == 0 || depth + 1 >= at_once)) named_barrier(1, 32 * kMultiplying);
    barrier_wait(&barriers->full[stage], parity);
    const uint64_t w = descriptor_k_major(w_ring + stage * kWeightBytes);
    const uint64_t x = descriptor_k_major(x_ring + stage * x_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) Mma<kRows, kInputOf<T>>::shared(d, w + 2 * step, x + 2 * step, true);
    wgmma_commit();
    if (depth > 0) {
      wgmma_wait<1>();
      if (lane == 0) barrier_arrive(&barriers->empty[before]);
    }
    if constexpr (kBits8) {
      const BytesTaken runs = taken;
      if (depth + 2 >= at_once && depth + 2 < count) take();
      if (depth + 1 >= at_once && depth + 1 < count) put(runs);
    }
    before = stage;
    if (++stage == shape.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  registers_fence(d);

  named_barrier(1, 32 * kMultiplying);  // all have read the stages
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
  named_barrier(1, 32 * kMultiplying);
  const float* parts = sums;
  int pitch = kPitch;
  if (ranks > 1) {
    cluster_wait();
    for (int i = thread; i < rows * (kTile / 4); i += 32 * kMultiplying) {
      const int row = i / (kTile / 4), quad = i % (kTile / 4) * 4;
      const uint4 bits = *reinterpret_cast<const uint4*>(&sums[row * kPitch + quad]);
      float* const to = of_ranks + (rank * most_rows + row / ranks) * kTile + quad;
      store_16_remote(to, &barriers->arrived, row % ranks, bits);
    }
    if (own_rows <= 0) return;
    barrier_wait_cluster(&barriers->arrived, 0);
    parts = of_ranks;
    pitch = kTile;
  }
  for (int of_row = first_task_row; of_row < own_rows; of_row += 32 * kMultiplying / kQuads) {
    const auto total = [&](int column) {
      float4 value{};
      for (int other = 0; other < ranks; ++other) {
        const float4 more = *reinterpret_cast<const float4*>(parts + (other * most_rows + of_row) * pitch + column);
        value = {value.x + more.x, value.y + more.y, value.z + more.z, value.w + more.w};
      }
      return value;
    };
    const int column = thread % kQuads * 4;
    const float rstd = barriers->rstd[of_row];
    // Each step rounded on its own, so that all kinds of this kernel give the same bits.
    const auto finished = [&](float4 v, const float4& by, const float4& more) {
      if constexpr (kBits8) {
        v = {__fmul_rn(v.x, by.x), __fmul_rn(v.y, by.y), __fmul_rn(v.z, by.z), __fmul_rn(v.w, by.w)};
      }
      v = {__fmul_rn(v.x, rstd), __fmul_rn(v.y, rstd), __fmul_rn(v.z, rstd), __fmul_rn(v.w, rstd)};
      if (p.adapter.slices == 0) return v;
      return float4{__fadd_rn(v.x, more.x), __fadd_rn(v.y, more.y), __fadd_rn(v.z, more.z), __fadd_rn(v.w, more.w)};
    };
    if (of_row != first_task_row) adapt(of_row);
    float4 value = finished(total(column), scale, adapted);
    if constexpr (kGated) {
      const float4 up = finished(total(kColumns + column), scale_up, adapted_up);
      const auto gated = [](float gate, float by) {
        gate = to_float(from_float<T>(gate));
        return to_float(from_float<T>(gate / (1.0f + __expf(-gate)))) * to_float(from_float<T>(by));
      };
      value = {gated(value.x, up.x), gated(value.y, up.y), gated(value.z, up.z), gated(value.w, up.w)};
    } else if (p.residual != nullptr) {
      const uint2 pairs = of_row == first_task_row || !inside ? added : residual(of_row, task_column);
      const float2 low = widen_pair<kInputOf<T>>(pairs.x), high = widen_pair<kInputOf<T>>(pairs.y);
      value = {value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y};
    }
    const int64_t row = rank + of_row * ranks;
    const uint2 rounded = {round_pair<kInputOf<T>>(value.x, value.y), round_pair<kInputOf<T>>(value.z, value.w)};
    if (inside) *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + row * width + task_column) = rounded;
    if (!kGated && p.next_norm != nullptr) {
      const float2 low = widen_pair<kInputOf<T>>(rounded.x), high = widen_pair<kInputOf<T>>(rounded.y);
      float squares = inside ? low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y : 0;
#pragma unroll
      for (int offset = kQuads / 2; offset > 0; offset /= 2) {
        squares += __shfl_xor_sync(0xffffu << (lane & 16), squares, offset);
      }
      if (thread % kQuads == 0) p.squares[row * tiles_of(width) + first_column / kTile] = squares;
      if (inside) {
        *reinterpret_cast<uint2*>(static_cast<T*>(p.scaled) + row * width + task_column) = {
            round_pair<kInputOf<T>>(low.x * factor.x, low.y * factor.y),
            round_pair<kInputOf<T>>(high.x * factor.z, high.y * factor.w)};
      }
    }
  }
#endif
}

template <typename T, int kRows, bool kGated, bool kBits8>
cudaError_t start_tiles(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  constexpr int kColumns = kGated ? kTile / 2 : kTile;
  const int64_t tiles = (p.width + kColumns - 1) / kColumns, depths = (p.inner + kDepth - 1) / kDepth;
  TilesShape shape{1, 0, static_cast<int>((p.rows + 7) / 8 * 8)};
  while (shape.ranks < kRanksMost && tiles * shape.ranks < kBlocks && depths >= kDepthsOfRank * shape.ranks * 2) {
    shape.ranks *= 2;
  }
  const int stage_bytes = kWeightBytes + shape.x_rows * 128, beside = bytes_beside_stages(shape);
  // At least two stages, in which the sums of all rows have room, too.
  const auto needed = std::max(int64_t{2}, (depths + shape.ranks - 1) / shape.ranks);
  shape.stages =
      static_cast<int>(std::min({needed, int64_t{kStagesMost}, int64_t{(kBlockBytes - beside) / stage_bytes}}));
  // The bytes of a weight are taken two stages ahead of the product.
  if (kBits8 && shape.stages < std::min(needed, int64_t{3})) return cudaErrorInvalidValue;
  CUtensorMap map_x, map_w;
  cudaError_t error = encode_rows(map_x, p.x, p.rows, p.inner, shape.x_rows);
  const int64_t weight_rows = kGated ? 2 * p.width : p.width;
  if (error == cudaSuccess) {
    error = kBits8 ? encode_map(map_w, p.weight, MapElement::bits8, MapSwizzle::none,
                                {{p.inner, 0, kDepth}, {weight_rows, p.inner, kColumns}})
                   : encode_rows(map_w, p.weight, weight_rows, p.inner, kColumns);
  }
  const auto kernel = skinny_gemm_tiles<T, kRows, kGated, kBits8>;
  if (error == cudaSuccess) error = want_shared_memory(kernel);
  if (error != cudaSuccess) return error;
  return start(kernel, static_cast<int>(tiles) * shape.ranks, kThreads, shape.stages * stage_bytes + beside,
               shape.ranks, stream, map_x, map_w, p, shape);
}

template <typename T, int kRows, bool kBits8>
cudaError_t start_tiles(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  return p.gated ? start_tiles<T, kRows, true, kBits8>(p, stream) : start_tiles<T, kRows, false, kBits8>(p, stream);
}

template <bool kBits8>
cudaError_t start_tiles(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  return by_half_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (p.rows <= 32) return start_tiles<T, 32, kBits8>(p, stream);
    if (p.rows <= 64) return start_tiles<T, 64, kBits8>(p, stream);
    if (p.rows <= 96) return start_tiles<T, 96, kBits8>(p, stream);
    return start_tiles<T, 128, kBits8>(p, stream);
  });
}

}  // namespace hrm::ops::cuda::sm90
