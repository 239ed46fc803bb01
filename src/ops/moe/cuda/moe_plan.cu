// The place of each pick among those of its expert: counted by blocks of picks, summed over the blocks, then given out.
// A counting sort that keeps the order, so that the result is the same each time.

#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kMostExperts = 1024;

__device__ inline int warp_inclusive_sum(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

__global__ void __launch_bounds__(kMoeBlockPicks) count_kernel(const MoePlanParams p) {
  __shared__ int counts[kMostExperts];
  for (int expert = static_cast<int>(threadIdx.x); expert < p.experts; expert += kMoeBlockPicks) counts[expert] = 0;
  __syncthreads();
  const int64_t pick = int64_t{blockIdx.x} * kMoeBlockPicks + threadIdx.x;
  if (pick < p.picks) {
    const int expert = p.ids[pick];
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  for (int expert = static_cast<int>(threadIdx.x); expert < p.experts; expert += kMoeBlockPicks) {
    p.block_counts[int64_t{expert} * gridDim.x + blockIdx.x] = counts[expert];
  }
}

// One block. Each warp sums experts' counts over the blocks and leaves what came before each block; then the experts'
// first rows and the owners of the tiles.
__global__ void __launch_bounds__(1024) sum_kernel(const MoePlanParams p, int blocks) {
  __shared__ int totals[kMostExperts], of_warps[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int expert = warp; expert < p.experts; expert += 32) {
    int* counts = p.block_counts + int64_t{expert} * blocks;
    int before = 0;
    constexpr int kAtOnce = 8;  // loads under way
    for (int base = 0; base < blocks; base += 32 * kAtOnce) {
      int own[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = base + 32 * i + lane;
        own[i] = block < blocks ? counts[block] : 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = base + 32 * i + lane, sum = warp_inclusive_sum(own[i]);
        if (block < blocks) counts[block] = before + sum - own[i];
        before += __shfl_sync(0xffffffffu, sum, 31);
      }
    }
    if (lane == 0) totals[expert] = before;
  }
  __syncthreads();
  const int expert = static_cast<int>(threadIdx.x);
  const int count = expert < p.experts ? totals[expert] : 0;
  const int padded = (count + kTile - 1) / kTile * kTile, sum = warp_inclusive_sum(padded);
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  if (warp == 0) of_warps[lane] = warp_inclusive_sum(of_warps[lane]) - of_warps[lane];
  __syncthreads();
  const int start = of_warps[warp] + sum - padded;
  if (expert < p.experts) {
    p.starts[expert] = start;
    p.counts[expert] = count;
    if (expert == p.experts - 1) p.starts[p.experts] = start + padded;
    for (int tile = start / kTile; tile < (start + padded) / kTile; ++tile) p.tile_experts[tile] = expert;
  }
}

__global__ void __launch_bounds__(kMoeBlockPicks) place_kernel(const MoePlanParams p) {
  __shared__ int experts[kMoeBlockPicks];
  const int64_t pick = int64_t{blockIdx.x} * kMoeBlockPicks + threadIdx.x;
  const int expert = pick < p.picks ? p.ids[pick] : -1;
  experts[threadIdx.x] = expert;
  __syncthreads();
  if (pick >= p.picks) return;
  if (expert < 0) {
    p.rows[pick] = -1;
    return;
  }
  int rank = 0;
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) rank += experts[i] == expert ? 1 : 0;
  const int row = p.starts[expert] + p.block_counts[int64_t{expert} * gridDim.x + blockIdx.x] + rank;
  p.rows[pick] = row;
  p.row_picks[row] = static_cast<int>(pick);
}

}  // namespace

cudaError_t launch(const MoePlanParams& p, cudaStream_t stream) {
  cudaError_t error = cudaMemsetAsync(p.row_picks, 0xff, static_cast<size_t>(p.all_rows) * sizeof(int), stream);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(p.tile_experts, 0, static_cast<size_t>(p.all_rows / kTile) * sizeof(int), stream);
  }
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<int>((p.picks + kMoeBlockPicks - 1) / kMoeBlockPicks);
  if (blocks > 0) count_kernel<<<static_cast<unsigned>(blocks), kMoeBlockPicks, 0, stream>>>(p);
  sum_kernel<<<1, 1024, 0, stream>>>(p, blocks);
  if (blocks > 0) place_kernel<<<static_cast<unsigned>(blocks), kMoeBlockPicks, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
