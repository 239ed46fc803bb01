#include "ops/embedding/cuda/embed_tokens.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 8;  // rows in flight in each thread

// Where an entry's sum goes: to the table if all its rows are in this piece; otherwise to the piece's first or second
// row of `partial`, by whether the entry began in an earlier piece.
template <int N>
__device__ inline void put(const EmbedTokensBackward& p, int64_t pieces, int64_t piece, int64_t id, bool from_before,
                           bool goes_on, int64_t column, const float (&sum)[N]) {
  if (!from_before && !goes_on) {
    float* const to = p.grad_table + id * p.width + column;
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] += sum[k];
    return;
  }
  float* const to = p.partial + ((from_before ? 0 : pieces) + piece) * p.width + column;
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = sum[k];
}

// A block sums the rows of one piece; a thread has N columns.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_pieces(EmbedTokensBackward p, int64_t pieces) {
  wait_for_earlier();
  __shared__ int64_t ids[kEmbedPiece], rows[kEmbedPiece];
  const int64_t piece = blockIdx.x, begin = piece * kEmbedPiece;
  const int count = static_cast<int>(p.tokens - begin < kEmbedPiece ? p.tokens - begin : kEmbedPiece);
  if (threadIdx.x < count) {
    ids[threadIdx.x] = p.ids[begin + threadIdx.x];
    rows[threadIdx.x] = p.order[begin + threadIdx.x];
  }
  __syncthreads();
  const bool first_from_before = begin > 0 && p.ids[begin - 1] == ids[0];
  const bool last_goes_on = begin + count < p.tokens && p.ids[begin + count] == ids[count - 1];
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (column >= p.width) return;
  const T* const grad = static_cast<const T*>(p.grad_x) + column;
  float sum[N] = {};
  int first = 0;  // of the entry that is being summed
  for (int base = 0; base < count; base += kAhead) {
    Pack<T, N> value[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (base + j < count) value[j] = load_pack<T, N>(grad + rows[base + j] * p.width);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j;
      if (i >= count) continue;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += to_float(value[j].value[k]);
      const bool last = i + 1 == count;
      if (!last && ids[i + 1] == ids[i]) continue;
      put<N>(p, pieces, piece, ids[i], first == 0 && first_from_before, last && last_goes_on, column, sum);
      first = i + 1;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = 0;
    }
  }
}

// One block for each piece in which an entry begins that continues behind it.
__global__ void __launch_bounds__(kThreads) add_pieces(EmbedTokensBackward p, int64_t pieces) {
  wait_for_earlier();
  const int64_t piece = blockIdx.x, begin = piece * kEmbedPiece, next = begin + kEmbedPiece;
  if (next >= p.tokens) return;
  const int64_t id = p.ids[next - 1];
  const bool begins_here = begin == 0 || p.ids[begin - 1] != id;
  if (p.ids[next] != id || !begins_here) return;
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= p.width) return;
  float total = p.partial[(pieces + piece) * p.width + column];
  for (int64_t other = piece + 1; other < pieces && p.ids[other * kEmbedPiece] == id; ++other) {
    total += p.partial[other * p.width + column];
  }
  p.grad_table[id * p.width + column] += total;
}

template <typename T, int N>
cudaError_t start_packs(const EmbedTokensBackward& p, cudaStream_t stream) {
  const int64_t pieces = embed_pieces(p.tokens), tiles = (p.width / N + kThreads - 1) / kThreads;
  const int64_t columns = (p.width + kThreads - 1) / kThreads;
  if (pieces > INT32_MAX || columns > 65535) return cudaErrorInvalidConfiguration;  // the grid's limits
  const auto blocks = static_cast<unsigned>(pieces);
  const cudaError_t error =
      start_early(&sum_pieces<T, N>, dim3(blocks, static_cast<unsigned>(tiles)), kThreads, 0, stream, p, pieces);
  if (error != cudaSuccess) return error;
  return start_early(&add_pieces, dim3(blocks, static_cast<unsigned>(columns)), kThreads, 0, stream, p, pieces);
}

template <typename T>
cudaError_t start(const EmbedTokensBackward& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  return p.width % N == 0 && aligned16(p.grad_x) ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch(const EmbedTokensBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
