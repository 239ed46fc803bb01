#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/norm/cuda/add_pieces.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  // packs of a thread

template <typename T, int N, bool kAhead>
__global__ void __launch_bounds__(kThreads) add_pieces_kernel(AddPieces p, int64_t packs) {
  if constexpr (kAhead) let_next_begin();  // a product, which loads its weight first
  wait_for_earlier();
  const T* const pieces = static_cast<const T*>(p.pieces);
  const T* const residual = static_cast<const T*>(p.residual);
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kUnroll) + threadIdx.x;
  float sum[kUnroll][N];
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const int64_t i = first + j * kThreads;
    if (i >= packs) break;
    const Pack<T, N> start = load_pack<T, N>((residual != nullptr ? residual : pieces) + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[j][k] = to_float(start.value[k]);
  }
  for (int part = residual != nullptr ? 0 : 1; part < p.parts; ++part) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t i = first + j * kThreads;
      if (i >= packs) break;
      const Pack<T, N> piece = load_pack<T, N>(pieces + part * p.distance + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[j][k] += to_float(piece.value[k]);
    }
  }
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const int64_t i = first + j * kThreads;
    if (i >= packs) break;
    store_sums<T, N, kAhead>(p.ahead, p.out, i * N, sum[j]);
  }
}

template <typename T, int N, bool kAhead = false>
cudaError_t start_packs(const AddPieces& p, cudaStream_t stream) {
  const int64_t packs = p.count / N, blocks = (packs + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  return start_early(&add_pieces_kernel<T, N, kAhead>, static_cast<unsigned>(blocks), kThreads, 0, stream, p, packs);
}

}  // namespace

cudaError_t launch(const AddPieces& p, cudaStream_t stream) {
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    constexpr int N = 16 / sizeof(T);
    const bool wide = p.count % N == 0 && p.distance % N == 0 && aligned16(p.pieces) && aligned16(p.out) &&
                      (p.residual == nullptr || aligned16(p.residual));
    if (p.ahead.norm != nullptr) return wide ? start_packs<T, N, true>(p, stream) : cudaErrorInvalidValue;
    return wide ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
  });
}

}  // namespace hrm::ops::cuda
