#include "ops/cuda/inject.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // packs in flight in each thread

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) inject_kernel(const InjectForward p) {
  wait_for_earlier();
  const T* a = static_cast<const T*>(p.a);
  const T* b = static_cast<const T*>(p.b);
  T* sum = static_cast<T*>(p.sum);
  // The last block of elements first.
  const int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;
  const int64_t first = (block * (kThreads * kUnroll) + threadIdx.x) * N;
  Pack<T, N> x[kUnroll], y[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = first + int64_t{i} * kThreads * N;
    if (at + N <= p.size) {
      x[i] = load_pack<T, N>(a + at);
      y[i] = load_pack<T, N>(b + at);
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = first + int64_t{i} * kThreads * N;
    if (at + N <= p.size) {
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(x[i].value[k]) + to_float(y[i].value[k]));
      store_pack<T, N>(sum + at, out);
    } else if (at < p.size) {  // less than a pack is left
      for (int64_t k = at; k < p.size; ++k) sum[k] = from_float<T>(to_float(a[k]) + to_float(b[k]));
    }
  }
}

template <typename T, int N>
cudaError_t start(const InjectForward& p, cudaStream_t stream) {
  const int64_t of_block = int64_t{kThreads} * kUnroll * N, blocks = (p.size + of_block - 1) / of_block;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  return start_early(inject_kernel<T, N>, static_cast<unsigned>(blocks), kThreads, 0, stream, p);
}

}  // namespace

cudaError_t launch(const InjectForward& params, cudaStream_t stream) {
  if (params.size == 0) return cudaSuccess;
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    const bool vector = aligned16(params.a) && aligned16(params.b) && aligned16(params.sum);
    return vector ? start<T, 16 / sizeof(T)>(params, stream) : start<T, 1>(params, stream);
  });
}

}  // namespace hrm::ops::cuda
