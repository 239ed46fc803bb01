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
// Blocks write into the shared memory of others when all of their cluster have begun (cluster_wait()), and the one that
// is written to stays until all that it expects has come. So nobody has to wait for the others before it leaves.

#include <algorithm>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_tiles.h"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kTile = 64;   // columns of a cluster; gated, half of them gates, half what they are for
constexpr int kDepth = 64;  // summands of a stage
constexpr int kWeightBytes = kTile * kDepth * 2;
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
  uint64_t arrived;           // what the cluster sends
  float rstd[kTileRowsMost];  // of the rows that this block finishes
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

// kRows: of the product, at least x_rows. What it multiplies beyond those is whatever follows them and is read by
// nobody.
template <typename T, int kRows, bool kGated>
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

  const auto load_weight = [&](int stage, int depth) {
    uint8_t* const to = w_ring + stage * kWeightBytes;
    const int summand = (begin + depth) * kDepth;
    tma_load(to, &map_w, &barriers->full[stage], summand, first_column);
    if constexpr (kGated) {
      tma_load(to + kWeightBytes / 2, &map_w, &barriers->full[stage], summand, width + first_column);
    }
  };
  const auto load_x = [&](int stage, int depth) {
    tma_load(x_ring + stage * x_bytes, &map_x, &barriers->full[stage], (begin + depth) * kDepth, 0);
  };
  const int at_once = min(count, shape.stages);
  if (warp == kMultiplying && lane == 0) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      barrier_init(&barriers->full[stage], 1);
      barrier_init(&barriers->empty[stage], kMultiplying);
    }
    barrier_init(&barriers->arrived, 1);
    barrier_init_fence();
    if (ranks > 1) barrier_arrive_expect(&barriers->arrived, ranks * own_rows * kTile * 4);
    for (int depth = 0; depth < at_once; ++depth) {
      barrier_arrive_expect(&barriers->full[depth], kWeightBytes + x_bytes);
      if (p.steady) load_weight(depth, depth);
    }
  }
  __syncwarp();
  if (ranks > 1) cluster_arrive_relaxed();
  __syncthreads();
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
        barrier_arrive_expect(&barriers->full[stage], kWeightBytes + x_bytes);
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

  const int thread = static_cast<int>(threadIdx.x);
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
  float d[kRows / 2] = {};
  int stage = 0, before = 0;
  uint32_t parity = 0;
  for (int depth = 0; depth < count; ++depth) {
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
    before = stage;
    if (++stage == shape.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  registers_fence(d);

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
  float4 factor{};  // of the norm that follows
  if (!kGated && p.next_norm != nullptr && inside) factor = *reinterpret_cast<const float4*>(p.next_norm + task_column);

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
    const auto normed = [&](const float4& v) { return float4{v.x * rstd, v.y * rstd, v.z * rstd, v.w * rstd}; };
    float4 value = normed(total(column));
    if constexpr (kGated) {
      const float4 up = normed(total(kColumns + column));
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

template <typename T, int kRows, bool kGated>
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
  CUtensorMap map_x, map_w;
  cudaError_t error = encode_rows(map_x, p.x, p.rows, p.inner, shape.x_rows);
  if (error == cudaSuccess) error = encode_rows(map_w, p.weight, kGated ? 2 * p.width : p.width, p.inner, kColumns);
  if (error == cudaSuccess) error = want_shared_memory(skinny_gemm_tiles<T, kRows, kGated>);
  if (error != cudaSuccess) return error;
  return start(skinny_gemm_tiles<T, kRows, kGated>, static_cast<int>(tiles) * shape.ranks, kThreads,
               shape.stages * stage_bytes + beside, shape.ranks, stream, map_x, map_w, p, shape);
}

template <typename T, int kRows>
cudaError_t start_tiles(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  return p.gated ? start_tiles<T, kRows, true>(p, stream) : start_tiles<T, kRows, false>(p, stream);
}

}  // namespace

bool fits_tiles(const cuda::SkinnyGemm& p) {
  return is_hopper() && p.norm == nullptr && p.rows >= 1 && p.rows <= kTileRowsMost && p.inner % 8 == 0 &&
         p.inner > 0 && p.inner <= INT32_MAX / 2 && p.width % 8 == 0 && p.width > 0 && p.width <= INT32_MAX / 16 &&
         p.element != Element::f32;
}

cudaError_t launch_tiles(const cuda::SkinnyGemm& params, cudaStream_t stream) {
  if (!fits_tiles(params)) return cudaErrorInvalidValue;
  return by_half_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (params.rows <= 32) return start_tiles<T, 32>(params, stream);
    if (params.rows <= 64) return start_tiles<T, 64>(params, stream);
    if (params.rows <= 96) return start_tiles<T, 96>(params, stream);
    return start_tiles<T, 128>(params, stream);
  });
}

}  // namespace hrm::ops::cuda::sm90
