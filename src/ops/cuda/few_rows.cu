#include "ops/cuda/few_rows.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int N = 8;  // elements of 16 bytes
constexpr int kUnroll = 4;

template <typename T>
__device__ inline float rounded(float value) {
  return to_float(from_float<T>(value));
}

// Sums of R rows of x with one row of the weight, in every lane: lane l takes packs l, l + 32, ...
template <typename T, int R, int C>
__device__ inline void products(const T* x, const T* const (&weight)[C], int inner, float (&sum)[C][R]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, packs = inner / N;
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int r = 0; r < R; ++r) sum[c][r] = 0;
  }
  for (int first = lane; first < packs; first += 32 * kUnroll) {
    Pack<T, N> w[C][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = first + 32 * u;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (pack < packs) w[c][u] = load_pack<T, N>(weight[c] + pack * N);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = first + 32 * u;
      if (pack >= packs) break;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const Pack<T, N> values = load_pack<T, N>(x + int64_t{r} * inner + pack * N);
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
          for (int c = 0; c < C; ++c) sum[c][r] += to_float(values.value[n]) * to_float(w[c][u].value[n]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int r = 0; r < R; ++r) sum[c][r] = warp_sum(sum[c][r]);
  }
}

// A warp has one column of the result.
template <typename T, int R, bool kGated>
__global__ void __launch_bounds__(kWarps * 32) few_rows(FewRows p) {
  wait_for_earlier();
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int width = static_cast<int>(p.width), inner = static_cast<int>(p.inner);
  if (column >= width) return;  // the whole warp leaves
  const T *x = static_cast<const T*>(p.x), *weight = static_cast<const T*>(p.weight);
  constexpr int C = kGated ? 2 : 1;
  const T* columns[C];
#pragma unroll
  for (int c = 0; c < C; ++c) columns[c] = weight + (int64_t{c} * width + column) * inner;
  float sum[C][R];
  products<T, R, C>(x, columns, inner, sum);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float result = 0;  // of the row that this lane writes
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (lane != r) continue;
    if constexpr (kGated) {
      const float gate = rounded<T>(sum[0][r]), up = rounded<T>(sum[C - 1][r]);
      result = rounded<T>(gate / (1.0f + __expf(-gate))) * up;
    } else {
      result = sum[0][r];
    }
  }
  if (lane >= R || lane >= p.rows) return;
  const int64_t at = int64_t{lane} * width + column;
  if (p.residual != nullptr) result += to_float(static_cast<const T*>(p.residual)[at]);
  static_cast<T*>(p.out)[at] = from_float<T>(result);
}

template <typename T, int R>
cudaError_t start(const FewRows& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.width + kWarps - 1) / kWarps);
  if (p.gated) return start_early(&few_rows<T, R, true>, blocks, kWarps * 32, 0, stream, p);
  return start_early(&few_rows<T, R, false>, blocks, kWarps * 32, 0, stream, p);
}

}  // namespace

cudaError_t launch(const FewRows& params, cudaStream_t stream) {
  if (!fits(params)) return cudaErrorInvalidValue;
  return by_half_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    switch (params.rows) {
      case 1:
        return start<T, 1>(params, stream);
      case 2:
        return start<T, 2>(params, stream);
      case 3:
        return start<T, 3>(params, stream);
      case 4:
        return start<T, 4>(params, stream);
      case 5:
        return start<T, 5>(params, stream);
      case 6:
        return start<T, 6>(params, stream);
      case 7:
        return start<T, 7>(params, stream);
      default:
        return start<T, 8>(params, stream);
    }
  });
}

}  // namespace hrm::ops::cuda
