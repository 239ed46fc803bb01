#include "ops/cuda/sparse_sign_sgd.h"

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

// A block sums kColumns columns; its lanes take every kLanes-th of the rows, and their sums are joined in lane order.
template <int kColumns, int kLanes>
struct Tile {
  static constexpr int kThreads = kColumns * kLanes;
};

__device__ inline void move(const SparseSignSgdParams& args, int64_t entry, int64_t column, float sum) {
  float& weight = args.weights[entry * args.dim + column];
  const float lr = *args.lr;
  const float sign = static_cast<float>((sum > 0) - (sum < 0));
  weight = weight * (1 - lr * args.weight_decay) - lr * sign;
}

template <int kColumns, int kLanes>
__device__ inline float join_lanes(float sum) {
  __shared__ float shared[kLanes][kColumns];
  const int column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  shared[lane][column] = sum;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) shared[lane][column] += shared[lane + half][column];
  }
  return shared[lane][column];  // whole in lane 0
}

// A table of one entry: the column sums of all rows.
template <int kColumns, int kLanes>
__global__ void __launch_bounds__(Tile<kColumns, kLanes>::kThreads) one_entry(const SparseSignSgdParams args) {
  if (*args.skip != 0) return;
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  const int lane = threadIdx.x / kColumns;
  float sum = 0;
  if (column < args.dim) {
#pragma unroll 8
    for (int64_t row = lane; row < args.rows; row += kLanes) sum += args.row_grads[row * args.dim + column];
  }
  sum = join_lanes<kColumns, kLanes>(sum);
  if (lane == 0 && column < args.dim) move(args, 0, column, sum);
}

// Block (i, c): where position i is the first with its id, the sum of the rows with that id over the columns of c.
template <class Id, int kColumns, int kLanes>
__global__ void __launch_bounds__(Tile<kColumns, kLanes>::kThreads)
    many_entries(const SparseSignSgdParams args, const Id* ids) {
  if (*args.skip != 0) return;
  constexpr int kThreads = Tile<kColumns, kLanes>::kThreads;
  constexpr int kWarps = kThreads / 32;
  __shared__ int64_t found[kThreads];  // rows of this round with the id, ascending
  __shared__ int found_by_warp[kWarps];
  const int64_t position = blockIdx.x;
  const Id id = ids[position];
  const int64_t column = int64_t{blockIdx.y} * kColumns + threadIdx.x % kColumns;
  const int lane = threadIdx.x / kColumns;
  const unsigned warp = threadIdx.x / 32, below = (1u << threadIdx.x % 32) - 1;
  float sum = 0;
  int64_t total = 0;  // found in earlier rounds: a row's lane depends on its rank among the rows with the id
  for (int64_t start = 0; start < args.rows; start += kThreads) {
    const int64_t row = start + threadIdx.x;
    const bool same = row < args.rows && ids[row] == id;
    // Another block does this id. Before `position` every round finds nothing else.
    if (__syncthreads_or(same && row < position)) return;
    const unsigned votes = __ballot_sync(0xffffffffu, same);
    if (threadIdx.x % 32 == 0) found_by_warp[warp] = __popc(votes);
    __syncthreads();
    int before = 0, count = 0;
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w == warp) before = count;
      count += found_by_warp[w];
    }
    if (same) found[before + __popc(votes & below)] = row;
    __syncthreads();
    if (column < args.dim) {
      const int first = static_cast<int>((lane - total % kLanes + kLanes) % kLanes);
#pragma unroll 4
      for (int k = first; k < count; k += kLanes) sum += args.row_grads[found[k] * args.dim + column];
    }
    total += count;
  }
  sum = join_lanes<kColumns, kLanes>(sum);
  if (lane == 0 && column < args.dim) move(args, static_cast<int64_t>(id), column, sum);
}

template <class Id>
void launch_many(const SparseSignSgdParams& params, const Id* ids, cudaStream_t stream) {
  constexpr int kColumns = 128, kLanes = 4;
  const dim3 grid(static_cast<unsigned>(params.rows), static_cast<unsigned>((params.dim + kColumns - 1) / kColumns));
  many_entries<Id, kColumns, kLanes><<<grid, kColumns * kLanes, 0, stream>>>(params, ids);
}

}  // namespace

cudaError_t launch(const SparseSignSgdParams& params, cudaStream_t stream) {
  if (params.entries == 1) {
    constexpr int kColumns = 8, kLanes = 128;
    one_entry<kColumns, kLanes>
        <<<static_cast<unsigned>((params.dim + kColumns - 1) / kColumns), kColumns * kLanes, 0, stream>>>(params);
  } else if (params.ids32 != nullptr) {
    launch_many(params, params.ids32, stream);
  } else {
    launch_many(params, params.ids64, stream);
  }
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
