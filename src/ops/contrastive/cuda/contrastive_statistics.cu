// Sums over the rows of a state, tile by tile. A block takes a tile of slots through its part of the rows and keeps the
// slots' sums in registers; a second kernel adds the parts in a fixed order. All arithmetic is float32: the two phases
// of a window nearly cancel.
#include "ops/contrastive/cuda/contrastive_statistics.h"

#include <algorithm>

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256, kSlots = 64, kRows = 16;
constexpr int kGroups = kThreads / kSlots;  // threads of one slot, each with a part of its columns and of the rows
constexpr float kLog2E = 1.44269504f;

template <typename V, int N, int D>
__global__ void __launch_bounds__(kThreads) slot_sums(ContrastiveStatistics p) {
  __shared__ float keys[kSlots][N + 1], values[kSlots][D + 1], x[kRows][N], o[kRows][D];
  __shared__ float squares[kRows], log_sums[kRows], scales[kRows];
  __shared__ float scaled_w[kRows][kSlots + 1], scaled_e[kRows][kSlots + 1], plain_e[kRows][kSlots + 1];
  __shared__ float scaled_cost[kRows][kSlots + 1];
  const int thread = static_cast<int>(threadIdx.x), local = thread % kSlots, group = thread / kSlots;
  const int first_slot = static_cast<int>(blockIdx.x) * kSlots, slot = first_slot + local;
  const int filled = p.filled == nullptr ? p.slots : static_cast<int>(min(static_cast<int64_t>(p.slots), *p.filled));
  const int rows_of_part = (p.rows + p.parts - 1) / p.parts;
  const int first_row = static_cast<int>(blockIdx.y) * rows_of_part, last_row = min(p.rows, first_row + rows_of_part);

  const auto* const all_values = static_cast<const V*>(p.values);
  for (int i = thread; i < kSlots * N; i += kThreads) {
    const int at = i % N, from = first_slot + i / N;
    keys[i / N][at] = from < filled && at < p.coords ? p.keys[static_cast<int64_t>(from) * p.coords + at] : 0;
  }
  for (int i = thread; i < kSlots * D; i += kThreads) {
    const int at = i % D, from = first_slot + i / D;
    values[i / D][at] =
        from < filled && at < p.width ? to_float(all_values[static_cast<int64_t>(from) * p.width + at]) : 0;
  }
  const float norm = slot < filled ? p.key_norms[slot] : 0, resilience = slot < filled ? p.resilience[slot] : 0;

  constexpr int kPullColumns = N / kGroups, kValueColumns = D / kGroups;
  float pulled[kPullColumns] = {}, mixed[kValueColumns] = {}, sum = 0;
  for (int row = first_row; row < last_row; row += kRows) {
    __syncthreads();
    for (int i = thread; i < kRows * N; i += kThreads) {
      const int at = i % N, from = row + i / N;
      x[i / N][at] = from < last_row && at < p.coords ? p.x[static_cast<int64_t>(from) * p.coords + at] : 0;
    }
    for (int i = thread; i < kRows * D; i += kThreads) {
      const int at = i % D, from = row + i / D;
      o[i / D][at] = from < last_row && at < p.width ? p.o[static_cast<int64_t>(from) * p.width + at] : 0;
    }
    if (thread < kRows) {
      const bool inside = row + thread < last_row;
      log_sums[thread] = inside ? p.log_sum[row + thread] : 0;
      scales[thread] = inside ? p.scales[row + thread] : 0;
    }
    __syncthreads();
    if (thread < kRows) {
      float total = 0;
      for (int i = 0; i < N; ++i) total = fmaf(x[thread][i], x[thread][i], total);
      squares[thread] = total;
    }
    __syncthreads();
    for (int r = group; r < kRows; r += kGroups) {
      float dot = 0, score = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) dot = fmaf(keys[local][i], x[r][i], dot);
#pragma unroll
      for (int i = 0; i < D; ++i) score = fmaf(values[local][i], o[r][i], score);
      const float square = fmaxf(norm + squares[r] - 2 * dot, 0) + p.cost_eps;
      const float inverse = rsqrtf(square), cost = square * inverse;
      const float logit = p.retrieval_beta * (p.gamma * score - resilience * cost) - log_sums[r];
      const bool real = slot < filled && row + r < last_row;
      const float w = real ? exp2f(logit * kLog2E) : 0, e = w * resilience * inverse;
      scaled_w[r][local] = w * scales[r];
      scaled_e[r][local] = e * scales[r];
      scaled_cost[r][local] = w * scales[r] * cost;
      plain_e[r][local] = e;
    }
    __syncthreads();
#pragma unroll 4
    for (int r = 0; r < kRows; ++r) {
      const float w = scaled_w[r][local], e = scaled_e[r][local];
#pragma unroll
      for (int i = 0; i < kPullColumns; ++i) pulled[i] = fmaf(e, x[r][group * kPullColumns + i], pulled[i]);
#pragma unroll
      for (int i = 0; i < kValueColumns; ++i) mixed[i] = fmaf(w, o[r][group * kValueColumns + i], mixed[i]);
      if (group == 0) sum += scaled_cost[r][local];
      if (group == 1) sum += e;
    }
    // A warp sums e of two rows over the tile's slots.
    const int warp = thread / 32, lane = thread % 32;
    for (int r = warp; r < kRows; r += kThreads / 32) {
      const float total = warp_sum(plain_e[r][lane] + plain_e[r][lane + 32]);
      if (lane == 0 && row + r < last_row) p.row_parts[static_cast<int64_t>(blockIdx.x) * p.rows + row + r] = total;
    }
  }
  if (slot >= p.slots) return;
  float* const to = p.slot_parts + (static_cast<int64_t>(blockIdx.y) * p.slots + slot) * (2 + p.coords + p.width);
  if (group < 2) to[group] = sum;
#pragma unroll
  for (int i = 0; i < kPullColumns; ++i) {
    if (group * kPullColumns + i < p.coords) to[2 + group * kPullColumns + i] = pulled[i];
  }
#pragma unroll
  for (int i = 0; i < kValueColumns; ++i) {
    if (group * kValueColumns + i < p.width) to[2 + p.coords + group * kValueColumns + i] = mixed[i];
  }
}

// sums[i] = sum over the parts of parts[part][i].
__global__ void __launch_bounds__(kThreads) add_parts(const float* parts, float* sums, int count, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  float total = 0;
  for (int part = 0; part < count; ++part) total += parts[part * size + i];
  sums[i] = total;
}

cudaError_t add(const float* parts, float* sums, int count, int64_t size, cudaStream_t stream) {
  add_parts<<<static_cast<unsigned>((size + kThreads - 1) / kThreads), kThreads, 0, stream>>>(parts, sums, count, size);
  return cudaGetLastError();
}

template <typename V, int N, int D>
cudaError_t start(const ContrastiveStatistics& p, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.slot_tiles()), static_cast<unsigned>(p.parts));
  slot_sums<V, N, D><<<blocks, kThreads, 0, stream>>>(p);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    error = add(p.slot_parts, p.slot_sums, p.parts, static_cast<int64_t>(p.slots) * p.columns(), stream);
  }
  return error == cudaSuccess ? add(p.row_parts, p.row_sums, p.slot_tiles(), p.rows, stream) : error;
}

template <typename V>
cudaError_t start_sizes(const ContrastiveStatistics& p, cudaStream_t stream) {
  if (p.coords <= 16) return p.width <= 32 ? start<V, 16, 32>(p, stream) : start<V, 16, 64>(p, stream);
  return p.width <= 32 ? start<V, 32, 32>(p, stream) : start<V, 32, 64>(p, stream);
}

}  // namespace

int ContrastiveStatistics::slot_tiles() const {
  return (slots + kSlots - 1) / kSlots;
}

int row_parts(int rows, int slots) {
  int device = 0, processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int tiles = (slots + kSlots - 1) / kSlots, chunks = (rows + kRows - 1) / kRows;
  return std::clamp(2 * processors / std::max(tiles, 1), 1, std::max(chunks, 1));
}

bool fits(const ContrastiveStatistics& p) {
  return p.coords <= 32 && p.width <= 64 && p.rows > 0 && p.slots > 0;
}

cudaError_t launch(const ContrastiveStatistics& p, cudaStream_t stream) {
  return p.element == Element::f16 ? start_sizes<__half>(p, stream) : start_sizes<float>(p, stream);
}

}  // namespace hrm::ops::cuda
