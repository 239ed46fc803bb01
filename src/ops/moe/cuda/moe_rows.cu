// Rows to their experts and back: copies and weighted sums, limited by the memory. A warp for each row or token, 16
// bytes of each lane at a time.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/moe/cuda/moe.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 8;

template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const MoeGather p) {
  constexpr int kN = kPack<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= *p.end) return;
  const int pick = p.picks[row], lane = static_cast<int>(threadIdx.x) % 32;
  const T* from = static_cast<const T*>(p.x) + int64_t{pick < 0 ? 0 : pick / p.top_k} * p.dim;
  T* to = static_cast<T*>(p.out) + row * p.dim;
  for (int64_t i = int64_t{kN} * lane; i < p.dim; i += 32 * kN) {
    store_pack<T, kN>(to + i, pick < 0 ? Pack<T, kN>{} : load_pack<T, kN>(from + i));
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) combine_kernel(const MoeCombine p) {
  constexpr int kN = kPack<T>;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= p.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Lane k knows the k-th row.
  int own_row = -1;
  float own_weight = 1;
  if (lane < p.top_k) {
    own_row = p.rows[token * p.top_k + lane];
    if (p.weights != nullptr) own_weight = p.weights[token * p.top_k + lane];
  }
  const T* y = static_cast<const T*>(p.y);
  for (int64_t base = 0; base < p.dim; base += 32 * kN) {
    const int64_t i = base + int64_t{kN} * lane;
    float sum[kN] = {};
    for (int k = 0; k < p.top_k; ++k) {
      const int row = __shfl_sync(0xffffffffu, own_row, k);
      const float weight = __shfl_sync(0xffffffffu, own_weight, k);
      if (row < 0 || i >= p.dim) continue;
      const Pack<T, kN> pack = load_pack<T, kN>(y + int64_t{row} * p.dim + i);
#pragma unroll
      for (int e = 0; e < kN; ++e) sum[e] += weight * to_float(pack.value[e]);
    }
    if (i >= p.dim) continue;
    Pack<T, kN> out;
#pragma unroll
    for (int e = 0; e < kN; ++e) out.value[e] = from_float<T>(sum[e]);
    store_pack<T, kN>(static_cast<T*>(p.out) + token * p.dim + i, out);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) combine_backward_kernel(const MoeCombineBackward p) {
  constexpr int kN = kPack<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= *p.end) return;
  const int pick = p.picks[row], lane = static_cast<int>(threadIdx.x) % 32;
  const float weight = pick < 0 ? 0 : p.weights[pick];
  const T* grad = static_cast<const T*>(p.grad_out) + int64_t{pick < 0 ? 0 : pick / p.top_k} * p.dim;
  const T* y = static_cast<const T*>(p.y) + row * p.dim;
  T* to = static_cast<T*>(p.grad_y) + row * p.dim;
  float dot = 0;
  for (int64_t i = int64_t{kN} * lane; i < p.dim; i += 32 * kN) {
    Pack<T, kN> out{};
    if (pick >= 0) {
      const Pack<T, kN> g = load_pack<T, kN>(grad + i), of = load_pack<T, kN>(y + i);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const float value = to_float(g.value[e]);
        dot += value * to_float(of.value[e]);
        out.value[e] = from_float<T>(value * weight);
      }
    }
    store_pack<T, kN>(to + i, out);
  }
  dot = warp_sum(dot);
  if (lane == 0 && pick >= 0) p.grad_weights[pick] = dot;
}

unsigned blocks_for(int64_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

}  // namespace

cudaError_t launch(const MoeGather& p, cudaStream_t stream) {
  if (p.rows == 0 || p.dim == 0) return cudaSuccess;
  return by_element(p.element, [&](auto type) {
    gather_kernel<TypeIn<decltype(type)>><<<blocks_for(p.rows), 32 * kWarps, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t launch(const MoeCombine& p, cudaStream_t stream) {
  if (p.tokens == 0 || p.dim == 0) return cudaSuccess;
  return by_element(p.element, [&](auto type) {
    combine_kernel<TypeIn<decltype(type)>><<<blocks_for(p.tokens), 32 * kWarps, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t launch(const MoeCombineBackward& p, cudaStream_t stream) {
  if (p.rows == 0 || p.dim == 0) return cudaSuccess;
  return by_element(p.element, [&](auto type) {
    combine_backward_kernel<TypeIn<decltype(type)>><<<blocks_for(p.rows), 32 * kWarps, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace hrm::ops::cuda
