#include "ops/optim/cuda/sparse_sign_sgd.h"

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

__device__ inline void move(const SparseSignSgdParams& args, int64_t entry, int64_t column, float sum) {
  float& weight = args.weights[entry * args.dim + column];
  const float lr = *args.lr;
  const float sign = static_cast<float>((sum > 0) - (sum < 0));
  weight = weight * (1 - lr * args.weight_decay) - lr * sign;
}

// A table of few entries, so that many rows have one id. Block (c, u) adds up 8 columns of the rows with id u; its 128
// lanes take every 128th row, and their sums are joined as a tree. `ids` null: all rows have the one id.
constexpr int kColumns = 8, kLanes = 128;
constexpr int64_t kFewEntries = 16;

template <class Id>
__global__ void __launch_bounds__(kColumns* kLanes) few_entries(const SparseSignSgdParams args, const Id* ids) {
  if (*args.skip != 0) return;
  const int64_t entry = blockIdx.y;
  const int place = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const int64_t column = int64_t{blockIdx.x} * kColumns + place;
  float sum = 0;
  bool found = false;
#pragma unroll 8
  for (int64_t row = lane; row < args.rows; row += kLanes) {
    if (ids != nullptr && ids[row] != entry) continue;
    found = true;
    if (column < args.dim) sum += args.row_grads[row * args.dim + column];
  }
  if (!__syncthreads_or(found)) return;
  __shared__ float shared[kLanes][kColumns];
  shared[lane][place] = sum;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) shared[lane][place] += shared[lane + half][place];
  }
  if (lane == 0 && column < args.dim) move(args, entry, column, shared[0][place]);
}

// A larger table: a warp for each position and part of the columns, N neighbouring ones a lane. Where the position is
// the first with its id, the warp adds up the rows with that id, in their order.
constexpr int kWarps = 8;
constexpr int kAhead = 4;  // loads under way at a time

template <class Id, int N>
__global__ void __launch_bounds__(kWarps * 32) many_entries(const SparseSignSgdParams args, const Id* ids) {
  if (*args.skip != 0) return;
  constexpr int64_t kWidth = 32 * N;
  const int64_t parts = (args.dim + kWidth - 1) / kWidth;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t position = warp / parts;
  if (position >= args.rows) return;
  const int64_t column = warp % parts * kWidth + lane * N;
  const bool inside = column < args.dim;
  const Id id = ids[position];
  Pack<float, N> sum{};
  for (int64_t start = 0; start < args.rows; start += kAhead * 32) {
    bool same[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t row = start + k * 32 + lane;
      same[k] = row < args.rows && ids[row] == id;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      unsigned found = __ballot_sync(0xffffffffu, same[k]);
      const int64_t first = start + k * 32;
      if (found != 0 && first + __ffs(found) - 1 < position) return;  // another warp does this id
      while (found != 0) {
        Pack<float, N> rows[kAhead];
        int count = 0;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (found == 0) break;
          const int64_t row = first + __ffs(found) - 1;
          found &= found - 1;
          if (inside) rows[j] = load_pack<float, N>(args.row_grads + row * args.dim + column);
          ++count;
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (j >= count) break;
#pragma unroll
          for (int i = 0; i < N; ++i) sum.value[i] += rows[j].value[i];
        }
      }
    }
  }
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < N; ++i) move(args, static_cast<int64_t>(id), column + i, sum.value[i]);
}

template <class Id, int N>
void launch_many(const SparseSignSgdParams& params, const Id* ids, cudaStream_t stream) {
  const int64_t warps = params.rows * ((params.dim + 32 * N - 1) / (32 * N));
  many_entries<Id, N><<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(params, ids);
}

template <class Id>
void start(const SparseSignSgdParams& params, const Id* ids, cudaStream_t stream) {
  if (params.entries <= kFewEntries) {
    const dim3 grid(static_cast<unsigned>((params.dim + kColumns - 1) / kColumns),
                    static_cast<unsigned>(params.entries));
    few_entries<<<grid, kColumns * kLanes, 0, stream>>>(params, params.entries == 1 ? nullptr : ids);
  } else if (params.dim % 4 == 0 && aligned16(params.row_grads)) {
    launch_many<Id, 4>(params, ids, stream);
  } else {
    launch_many<Id, 1>(params, ids, stream);
  }
}

}  // namespace

cudaError_t launch(const SparseSignSgdParams& params, cudaStream_t stream) {
  if (params.ids32 != nullptr) {
    start(params, params.ids32, stream);
  } else {
    start(params, params.ids64, stream);
  }
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
