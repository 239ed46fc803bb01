#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/embedding/cuda/embed.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;           // packs in flight in each thread
constexpr int kSumUnroll = 8;        // gradient rows in flight in each thread
constexpr int kMaxSumThreads = 256;  // of a block that sums gradient rows by entry; half where memory is short
constexpr int kAddLanes = 32;        // columns of a block that adds up the parts
constexpr int kAddSlices = kThreads / kAddLanes;

// 32-bit indices: a 64-bit division costs more than the memory that a thread moves.
template <typename T, int N, typename Index>
__global__ void __launch_bounds__(kThreads) forward(Embed p, Index packs) {
  const auto row_packs = static_cast<Index>(p.width / N), positions = static_cast<Index>(p.prefix + p.tokens);
  const auto prefix = static_cast<Index>(p.prefix), tokens = static_cast<Index>(p.tokens);
  const Index first = Index{blockIdx.x} * (kThreads * kUnroll) + threadIdx.x;
  Index column[kUnroll], sample[kUnroll], position[kUnroll];
  int32_t entry[kUnroll];
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    const Index row = i / row_packs;
    column[j] = (i - row * row_packs) * N;
    sample[j] = row / positions;
    position[j] = row - sample[j] * positions;
    const bool token = i < packs && position[j] >= prefix;
    entry[j] = token ? p.inputs[sample[j] * tokens + position[j] - prefix] : -1;
  }
  float value[kUnroll][N];
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    if (first + j * kThreads >= packs) continue;
    if (position[j] >= prefix) {
      load_floats<N>(p.table + int64_t{entry[j]} * p.width + column[j], value[j]);
    } else {
      const int64_t element = int64_t{position[j]} * p.width + column[j];
      const float* from = p.puzzle_rows + int64_t{sample[j]} * p.puzzle_width + element;
#pragma unroll
      for (int k = 0; k < N; ++k) value[j][k] = element + k < p.puzzle_width ? from[k] : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const Index i = first + j * kThreads;
    if (i >= packs) continue;
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(from_float<T>(value[j][k])) * p.scale);
    store_pack<T, N>(static_cast<T*>(p.x) + int64_t{i} * N, out);
  }
}

// Part `blockIdx.x` of the token rows, for the columns of tile `blockIdx.y`. A thread owns N columns of every entry in
// shared memory, so nothing is shared until the end; `lanes` threads with the same columns take every lanes-th row.
template <typename T, int N>
__global__ void __launch_bounds__(kMaxSumThreads) sum_by_entry(EmbedBackward p, int tile_threads) {
  constexpr int kWord = N % 4 == 0 ? 4 : 1;  // floats that shared memory moves at a time
  using Word = Pack<float, kWord>;
  extern __shared__ float4 shared[];
  Word* sums = reinterpret_cast<Word*>(shared);  // (entries, N / kWord, threads)
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto entries = static_cast<int>(p.entries);
  for (int i = thread; i < entries * (N / kWord) * threads; i += threads) sums[i] = Word{};
  __syncthreads();

  const int lanes = threads / tile_threads, lane = thread / tile_threads;
  const int64_t first_column = int64_t{blockIdx.y} * tile_threads * N;
  const int64_t column = first_column + thread % tile_threads * N;
  const auto rows = static_cast<uint32_t>(p.samples * p.tokens), tokens = static_cast<uint32_t>(p.tokens);
  const int64_t positions = p.prefix + p.tokens;
  const uint32_t per_part = (rows + kEmbedParts - 1) / kEmbedParts;
  const uint32_t begin = blockIdx.x * per_part, end = begin + per_part < rows ? begin + per_part : rows;
  const T* grad = static_cast<const T*>(p.grad_x) + column;
  if (lane < lanes && column < p.width) {
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
        Word* own = sums + entry[j] * (N / kWord) * threads + thread;
#pragma unroll
        for (int k = 0; k < N; k += kWord) {
          Word word = own[k / kWord * threads];
#pragma unroll
          for (int m = 0; m < kWord; ++m) word.value[m] += to_float(value[j].value[k + m]);
          own[k / kWord * threads] = word;
        }
      }
    }
  }
  __syncthreads();
  const float* flat = reinterpret_cast<const float*>(sums);
  const int columns = tile_threads * N;
  for (int i = thread; i < entries * columns; i += threads) {
    const int e = i / columns, c = i - e * columns, k = c % N;
    if (first_column + c >= p.width) continue;
    const float* from = flat + ((e * (N / kWord) + k / kWord) * threads + c / N) * kWord + k % kWord;
    float total = 0;
#pragma unroll 4
    for (int other = 0; other < lanes; ++other) total += from[other * tile_threads * kWord];
    p.partial[(int64_t{blockIdx.x} * entries + e) * p.width + first_column + c] = total;
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

// Shared memory of such a block: N columns of all entries for each thread.
int64_t sum_bytes(int64_t entries, int64_t columns, int threads) {
  return entries * columns * threads * static_cast<int64_t>(sizeof(float));
}

int64_t shared_limit() {
  int device = 0, limit = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? limit : 0;
}

template <typename T, int N>
cudaError_t start_forward(const Embed& p, cudaStream_t stream) {
  const int64_t packs = p.samples * (p.prefix + p.tokens) * (p.width / N);
  const int64_t blocks = (packs + kThreads * kUnroll - 1) / (kThreads * kUnroll);
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
  const int threads = sum_bytes(p.entries, N, kMaxSumThreads) <= shared_limit() ? kMaxSumThreads : kMaxSumThreads / 2;
  int tile_threads = threads;
  while (tile_threads / 2 >= packs) tile_threads /= 2;
  const int64_t tiles = (packs + tile_threads - 1) / tile_threads;
  if (p.samples * p.tokens > INT32_MAX || tiles > 65535) return cudaErrorInvalidConfiguration;  // 32-bit rows, grid
  const int64_t bytes = sum_bytes(p.entries, N, threads);
  const cudaError_t error =
      cudaFuncSetAttribute(sum_by_entry<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const dim3 grid(kEmbedParts, static_cast<unsigned>(tiles));
  sum_by_entry<T, N><<<grid, static_cast<unsigned>(threads), static_cast<size_t>(bytes), stream>>>(p, tile_threads);
  return cudaGetLastError();
}

template <typename T>
cudaError_t start(const Embed& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool vector = p.width % N == 0 && aligned16(p.x) && aligned16(p.table);
  return vector ? start_forward<T, N>(p, stream) : start_forward<T, 1>(p, stream);
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

}  // namespace

bool embed_backward_fits(int64_t entries, Element element) {
  return sum_bytes(entries, element == Element::f32 ? 4 : 8, kMaxSumThreads / 2) <= shared_limit();
}

cudaError_t launch(const Embed& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const EmbedBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
