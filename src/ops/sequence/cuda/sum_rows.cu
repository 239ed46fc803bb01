#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/sequence/cuda/sum_rows.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has N columns of one row. Narrow rows share a block.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_rows(SumRows p, unsigned packs, unsigned total) {
  wait_for_earlier();
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= total) return;
  const unsigned row = index / packs;
  const int64_t column = int64_t{index - row * packs} * N;
  const int64_t first = p.begin != nullptr ? p.begin[row] : row * p.each;
  const int64_t count = p.begin != nullptr ? p.begin[row + 1] - first : p.each;
  const int32_t* const from = p.from + first;
  const T* const x = static_cast<const T*>(p.x) + column;
  const bool has_base = row < p.base_rows;
  Pack<T, N> out;
  if (count == 1 && !(has_base && from[0] >= 0)) {
    const int32_t k = from[0];
#pragma unroll
    for (int i = 0; i < N; ++i) out.value[i] = from_float<T>(0);
    if (has_base) out = load_pack<T, N>(static_cast<const T*>(p.base) + row * p.width + column);
    if (k >= 0) out = load_pack<T, N>(x + k * p.width);
  } else {
    float sum[N] = {};
    if (has_base) {
      const Pack<T, N> value = load_pack<T, N>(static_cast<const T*>(p.base) + row * p.width + column);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = to_float(value.value[i]);
    }
    for (int64_t s = 0; s < count; ++s) {
      const int32_t k = from[s];
      if (k < 0) continue;
      const Pack<T, N> value = load_pack<T, N>(x + k * p.width);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += to_float(value.value[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) out.value[i] = from_float<T>(sum[i]);
  }
  store_pack<T, N>(static_cast<T*>(p.y) + row * p.width + column, out);
}

template <typename T, int N>
cudaError_t start_packs(const SumRows& p, cudaStream_t stream) {
  const int64_t packs = p.width / N, total = p.rows * packs;
  if (total > INT32_MAX) return cudaErrorInvalidConfiguration;
  const auto blocks = static_cast<unsigned>((total + kThreads - 1) / kThreads);
  return start_early(&sum_rows<T, N>, dim3(blocks), kThreads, 0, stream, p, static_cast<unsigned>(packs),
                     static_cast<unsigned>(total));
}

template <typename T>
cudaError_t start(const SumRows& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const bool whole = p.width % N == 0 && aligned16(p.x) && aligned16(p.base) && aligned16(p.y);
  return whole ? start_packs<T, N>(p, stream) : start_packs<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch(const SumRows& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
