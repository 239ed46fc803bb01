// Narrow products of a few rows with long sums, out = x weight^T (+ residual), as decoding has them behind attention
// and SwiGLU.
//
// A block for each few columns (skinny_gemm.cu) would have sums so long that its warps go through them in turns, and
// would read all of x. Here the four blocks of a cluster share the summands of 32 columns: as many blocks, but with up
// to 3,072 summands each warp asks for all its weights at once, while the kernel in front still runs, and then for all
// its x, of which a block reads a quarter. A block adds up what its warps have and sends it to the blocks that finish
// the rows, rank r rows r, r + 4, ..., which add the four parts in the order of ranks.
//
// Blocks write into the shared memory of others when all of their cluster have begun (cluster_wait()), and the one that
// is written to stays until all that it expects has come. So nobody has to wait for the others before it leaves.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/primitives.cuh"
#include "ops/linear/cuda/skinny_gemm.cuh"
#include "ops/linear/cuda/sm90/skinny_gemm_split.h"

namespace hrm::ops::cuda::sm90 {
namespace {

struct Split {
  static constexpr int kRanks = 4;  // blocks of a cluster
  static constexpr int kWarps = 8;  // of a block
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kColumns = 32;                 // of a cluster
  static constexpr int kStep = kRanks * kWarps * 32;  // summands from one part of a warp to its next
  // Floats from one row of a warp's sums to the next: neither what it writes of eight rows at once, nor 16 bytes for
  // each of eight threads, are twice in one bank.
  static constexpr int kPitch = kColumns + 8;
  static_assert(kRanks * kWarps == kSplitRows, "a warp finishes a row");
  static_assert(kStep <= kSplitInner, "each warp has summands");
};

template <int kRows>
struct SplitSums {
  float of_warps[Split::kWarps][kRows][Split::kPitch];
  float of_ranks[Split::kRanks][kRows / Split::kRanks][Split::kColumns];  // of the rows that this block finishes
  uint64_t arrived;                                                       // of_ranks, all of it
};

// A thread's 16 bytes of a row of weight or x are summands 8 t .. 8 t + 7 of 32, which are what two products of 16
// take.
template <typename T, int kRows>
__global__ void __launch_bounds__(Split::kThreads, 2) skinny_gemm_split(cuda::SkinnyGemm p) {
#if HRM_SM90A
  constexpr int kRanks = Split::kRanks, kWarps = Split::kWarps, kColumns = Split::kColumns, kStep = Split::kStep;
  constexpr int kUnroll = 3;  // parts of which a warp has the weights in registers
  constexpr int kTiles = kColumns / 8;
  constexpr int kHalves = kRows > 8 ? 2 : 1;  // of 16 rows, which are multiplied at once
  __shared__ __align__(16) SplitSums<kRows> sums;
  const int width = static_cast<int>(p.width), inner = static_cast<int>(p.inner), rows = static_cast<int>(p.rows);
  const int rank = static_cast<int>(cluster_rank());
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, part = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) / kRanks * kColumns;
  const T* const weight = static_cast<const T*>(p.weight);
  if (threadIdx.x == 0) {
    barrier_init(&sums.arrived, 1);
    barrier_init_fence();
    const int own_rows = (rows - rank + kRanks - 1) / kRanks;
    barrier_arrive_expect(&sums.arrived, kRanks * own_rows * kColumns * sizeof(float));
    // What is not loaded before the wait comes near at least, a quarter of the columns by each block.
    const int first = first_column + rank * (kColumns / kRanks), count = min(kColumns / kRanks, width - first);
    if ((!p.steady || inner > kUnroll * kStep) && count > 0) {
      ask_for(weight + int64_t{first} * inner, int64_t{count} * inner * sizeof(T));
    }
  }
  __syncwarp();
  cluster_arrive_relaxed();

  // Where this thread begins: in a column of each eight, and in two rows. What lies beyond the last column or row
  // becomes sums that nobody reads.
  const int first = (kWarps * rank + warp) * 32, begin = first + part * 8;
  const T* columns[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    columns[tile] = weight + int64_t{min(first_column + tile * 8 + group, width - 1)} * inner + begin;
  }
  const auto row_at = [&](int row) { return static_cast<const T*>(p.x) + int64_t{min(row, rows - 1)} * inner + begin; };
  const T* x[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    x[half] = row_at(8 * half + group);
    asm volatile("" : "+l"(x[half]));  // else it is computed after the wait
  }
  int done = 0, left = inner - begin;  // of the summands from `begin` on
  uint4 w[kUnroll][kTiles];
  const auto load = [&] {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        w[u][tile] = left > kStep * u ? load_once(columns[tile] + kStep * u) : uint4{};
      }
    }
  };
  if (p.steady) {
    let_next_begin();
    load();
  }
  wait_for_earlier();
  if (!p.steady) load();

  // 16 rows after the other: the registers hold the weights. Sums rest in shared memory, each thread's own.
  for (;;) {
#pragma unroll 1
    for (int row = 0; row < kRows; row += 16) {
      uint4 values[kUnroll][2]{};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const T* const from = row == 0 ? x[half] : row_at(row + 8 * half + group) + done;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (left > kStep * u) values[u][half] = load_here(from + kStep * u);
        }
      }
      float sum[kTiles][4] = {};
      const auto rest = [&](int tile, int half) -> float2& {
        return *reinterpret_cast<float2*>(&sums.of_warps[warp][row + 8 * half + group][8 * tile + 2 * part]);
      };
      if (done > 0) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            const float2 before = rest(tile, half);
            sum[tile][2 * half] = before.x;
            sum[tile][2 * half + 1] = before.y;
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint4 low = values[u][0], high = values[u][1];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 v = w[u][tile];
          multiply<T>(sum[tile], low.x, high.x, low.y, high.y, v.x, v.y);
          multiply<T>(sum[tile], low.z, high.z, low.w, high.w, v.z, v.w);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) rest(tile, half) = {sum[tile][2 * half], sum[tile][2 * half + 1]};
      }
    }
    done += kUnroll * kStep;
    left -= kUnroll * kStep;
    if (first + done >= inner) break;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) columns[tile] += kUnroll * kStep;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) x[half] += kUnroll * kStep;
    load();
  }

  // A warp finishes a row.
  const int row = rank + kRanks * warp, column = first_column + lane;
  const bool finishes = row < rows && column < width;
  const int64_t at = int64_t{row} * width + column;
  T added{};
  if (finishes && p.residual != nullptr) added = static_cast<const T*>(p.residual)[at];

  __syncthreads();
  cluster_wait();
  constexpr int kQuads = kColumns / 4;
  if (const int i = static_cast<int>(threadIdx.x); i < rows * kQuads) {
    const int of_row = i / kQuads, quad = i % kQuads * 4;
    float4 total{};
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float4 more = *reinterpret_cast<const float4*>(&sums.of_warps[other][of_row][quad]);
      total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
    }
    const uint4 bits = {__float_as_uint(total.x), __float_as_uint(total.y), __float_as_uint(total.z),
                        __float_as_uint(total.w)};
    store_16_remote(&sums.of_ranks[rank][of_row / kRanks][quad], &sums.arrived, of_row % kRanks, bits);
  }
  if (row >= rows) return;
  barrier_wait_cluster(&sums.arrived, 0);
  float result = 0;
#pragma unroll
  for (int other = 0; other < kRanks; ++other) result += sums.of_ranks[other][warp][lane];
  if (p.residual != nullptr) result += to_float(added);
  if (finishes) static_cast<T*>(p.out)[at] = from_float<T>(result);
#endif
}

template <typename T, int kRows>
cudaError_t start_split(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  const auto clusters = static_cast<int>((p.width + Split::kColumns - 1) / Split::kColumns);
  return start(skinny_gemm_split<T, kRows>, clusters * Split::kRanks, Split::kThreads, 0, Split::kRanks, stream, p);
}

}  // namespace

bool fits_split(const cuda::SkinnyGemm& p) {
  return is_hopper() && fits(p) && p.norm == nullptr && !p.gated && p.rows <= kSplitRows && p.inner >= kSplitInner &&
         p.width <= kSplitWidth;
}

cudaError_t launch_split(const cuda::SkinnyGemm& params, cudaStream_t stream) {
  if (!fits_split(params)) return cudaErrorInvalidValue;
  return by_half_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    if (params.rows <= 8) return start_split<T, 8>(params, stream);
    if (params.rows <= 16) return start_split<T, 16>(params, stream);
    return start_split<T, 32>(params, stream);
  });
}

}  // namespace hrm::ops::cuda::sm90
