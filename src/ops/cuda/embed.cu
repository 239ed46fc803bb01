#include "ops/cuda/common.cuh"
#include "ops/cuda/embed.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 128;  // of a block that sums gradient rows by entry
constexpr int kSumUnroll = 4;     // gradient rows in flight in each thread
constexpr int kAddLanes = 32;     // columns of a block that adds up the parts
constexpr int kAddSlices = kThreads / kAddLanes;

// 32-bit indices: a 64-bit division costs more than the memory that a thread moves.
template <typename T, int N, typename Index>
__global__ void __launch_bounds__(kThreads) forward(Embed p, Index packs) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const auto row_packs = static_cast<Index>(p.width / N), positions = static_cast<Index>(p.prefix + p.tokens);
  const Index row = i / row_packs;
  const Index sample = row / positions;
  const int64_t position = row - sample * positions, column = int64_t{i - row * row_packs} * N;
  Pack<T, N> out;
  if (position >= p.prefix) {
    const float* from = p.table + p.inputs[sample * p.tokens + position - p.prefix] * p.width + column;
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(from_float<T>(from[k])) * p.scale);
  } else {
    const int64_t element = position * p.width + column;
    const float* from = p.puzzle_rows + sample * p.puzzle_width + element;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float value = element + k < p.puzzle_width ? from[k] : 0.0f;
      out.value[k] = from_float<T>(to_float(from_float<T>(value)) * p.scale);
    }
  }
  store_pack<T, N>(static_cast<T*>(p.x) + int64_t{i} * N, out);
}

// Part `blockIdx.x` of the token rows, for the columns of tile `blockIdx.y`. A thread owns N columns of every entry in
// shared memory, so nothing is shared until the end; `lanes` threads with the same columns take every lanes-th row.
template <typename T, int N>
__global__ void __launch_bounds__(kSumThreads) sum_by_entry(EmbedBackward p, int tile_threads) {
  extern __shared__ float sums[];  // (entries, N, kSumThreads)
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread; i < p.entries * N * kSumThreads; i += kSumThreads) sums[i] = 0;
  __syncthreads();

  const int lanes = kSumThreads / tile_threads, lane = thread / tile_threads;
  const int64_t column = (int64_t{blockIdx.y} * tile_threads + thread % tile_threads) * N;
  const bool active = lane < lanes && column < p.width;
  const auto rows = static_cast<uint32_t>(p.samples * p.tokens), tokens = static_cast<uint32_t>(p.tokens);
  const int64_t positions = p.prefix + p.tokens;
  const uint32_t per_part = (rows + kEmbedParts - 1) / kEmbedParts;
  const uint32_t begin = blockIdx.x * per_part, end = begin + per_part < rows ? begin + per_part : rows;
  const T* grad = static_cast<const T*>(p.grad_x) + column;
  if (active) {
    for (uint32_t first = begin + lane; first < end; first += lanes * kSumUnroll) {
      Pack<T, N> value[kSumUnroll];
      int32_t entry[kSumUnroll];
#pragma unroll
      for (int j = 0; j < kSumUnroll; ++j) {
        const uint32_t row = first + j * lanes;
        entry[j] = -1;
        if (row < end) {
          const uint32_t sample = row / tokens;
          entry[j] = p.inputs[row];
          value[j] = load_pack<T, N>(grad + (sample * positions + p.prefix + (row - sample * tokens)) * p.width);
        }
      }
#pragma unroll
      for (int j = 0; j < kSumUnroll; ++j) {
        if (entry[j] < 0) continue;
        float* own = sums + int64_t{entry[j]} * (N * kSumThreads) + thread;
#pragma unroll
        for (int k = 0; k < N; ++k) own[k * kSumThreads] += to_float(value[j].value[k]);
      }
    }
  }
  __syncthreads();
  if (!active || lane > 0) return;
  for (int64_t entry = 0; entry < p.entries; ++entry) {
    float* to = p.partial + (int64_t{blockIdx.x} * p.entries + entry) * p.width + column;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float total = 0;
      for (int other = 0; other < lanes; ++other) {
        total += sums[(entry * N + k) * kSumThreads + thread + other * tile_threads];
      }
      to[k] = total;
    }
  }
}

// The first `add_blocks` blocks add up the parts, in one order; the others scale the puzzle rows' gradients.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_parts(EmbedBackward p, int64_t add_blocks) {
  if (blockIdx.x >= add_blocks) {
    const int64_t i = (int64_t{blockIdx.x} - add_blocks) * kThreads + threadIdx.x;
    if (i >= p.samples * p.puzzle_width) return;
    const int64_t sample = i / p.puzzle_width;
    const int64_t from = sample * (p.prefix + p.tokens) * p.width + i - sample * p.puzzle_width;
    p.grad_puzzle_rows[i] = to_float(static_cast<const T*>(p.grad_x)[from]) * p.scale;
    return;
  }
  __shared__ float slices[kAddSlices][kAddLanes];
  const int64_t size = p.entries * p.width;
  const int lane = static_cast<int>(threadIdx.x) % kAddLanes, slice = static_cast<int>(threadIdx.x) / kAddLanes;
  const int64_t i = int64_t{blockIdx.x} * kAddLanes + lane;
  float total = 0;
  if (i < size) {
#pragma unroll 8
    for (int part = slice; part < kEmbedParts; part += kAddSlices) total += p.partial[part * size + i];
  }
  slices[slice][lane] = total;
  __syncthreads();
  if (slice > 0 || i >= size) return;
#pragma unroll
  for (int other = 1; other < kAddSlices; ++other) total += slices[other][lane];
  p.grad_table[i] = total * p.scale;
}

template <typename T>
constexpr int64_t sum_bytes(int64_t entries) {
  return entries * (16 / static_cast<int64_t>(sizeof(T))) * kSumThreads * static_cast<int64_t>(sizeof(float));
}

int64_t sum_bytes(int64_t entries, Element element) {
  return element == Element::f32 ? sum_bytes<float>(entries) : sum_bytes<__half>(entries);
}

template <typename T, int N>
cudaError_t start_forward(const Embed& p, cudaStream_t stream) {
  const int64_t packs = p.samples * (p.prefix + p.tokens) * (p.width / N);
  const int64_t blocks = (packs + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  if (packs <= INT32_MAX) {
    forward<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, static_cast<uint32_t>(packs));
  } else {
    forward<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, packs);
  }
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t start_sums(const EmbedBackward& p, cudaStream_t stream) {
  const int64_t packs = p.width / N;
  int tile_threads = kSumThreads;
  while (tile_threads / 2 >= packs) tile_threads /= 2;
  const int64_t tiles = (packs + tile_threads - 1) / tile_threads;
  if (p.samples * p.tokens > INT32_MAX || tiles > 65535) return cudaErrorInvalidConfiguration;  // 32-bit rows, grid
  const int64_t bytes = p.entries * N * kSumThreads * static_cast<int64_t>(sizeof(float));
  const cudaError_t error =
      cudaFuncSetAttribute(sum_by_entry<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const dim3 grid(kEmbedParts, static_cast<unsigned>(tiles));
  sum_by_entry<T, N><<<grid, kSumThreads, static_cast<size_t>(bytes), stream>>>(p, tile_threads);
  return cudaGetLastError();
}

template <typename T>
cudaError_t start(const Embed& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  return p.width % N == 0 && aligned16(p.x) ? start_forward<T, N>(p, stream) : start_forward<T, 1>(p, stream);
}

template <typename T>
cudaError_t start(const EmbedBackward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool vector = p.width % N == 0 && aligned16(p.grad_x);
  const cudaError_t error = vector ? start_sums<T, N>(p, stream) : start_sums<T, 1>(p, stream);
  if (error != cudaSuccess) return error;
  const int64_t add_blocks = (p.entries * p.width + kAddLanes - 1) / kAddLanes;
  const int64_t puzzle_blocks =
      p.grad_puzzle_rows != nullptr ? (p.samples * p.puzzle_width + kThreads - 1) / kThreads : 0;
  if (add_blocks + puzzle_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  add_parts<T><<<static_cast<unsigned>(add_blocks + puzzle_blocks), kThreads, 0, stream>>>(p, add_blocks);
  return cudaGetLastError();
}

template <typename Params>
cudaError_t start_by_element(const Params& p, cudaStream_t stream) {
  switch (p.element) {
    case Element::f32:
      return start<float>(p, stream);
    case Element::bf16:
      return start<__nv_bfloat16>(p, stream);
    case Element::f16:
      return start<__half>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool embed_backward_fits(int64_t entries, Element element) {
  int device = 0, limit = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return false;
  }
  return sum_bytes(entries, element) <= limit;
}

cudaError_t launch(const Embed& params, cudaStream_t stream) {
  return start_by_element(params, stream);
}

cudaError_t launch(const EmbedBackward& params, cudaStream_t stream) {
  return start_by_element(params, stream);
}

}  // namespace hrm::ops::cuda
