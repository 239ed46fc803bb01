#include "ops/norm/cuda/rms_norm.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;    // rows of a block where a warp owns a row
constexpr int kBlockWarps = 8;       // warps of a block that owns one row
constexpr int64_t kBlockDim = 2048;  // from this width on, a whole block works on a row

// A warp owns a row and keeps it in registers: kPacks times 16 bytes in each lane.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kWarpsPerBlock * 32) forward_registers(RmsNormForward p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T);
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  if (row >= p.rows) return;  // the whole warp leaves
  const int lane = threadIdx.x % 32;
  const int packs = static_cast<int>(p.dim / N);
  const int64_t base = row * p.dim;
  const T* x = static_cast<const T*>(p.x) + base;
  const T* residual = static_cast<const T*>(p.residual) + base;

  Pack<T, N> h[kPacks];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = lane + 32 * i;
    if (pack < packs) {
      const Pack<T, N> a = load_pack<T, N>(x + pack * N);
      const Pack<T, N> b = load_pack<T, N>(residual + pack * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        h[i].value[k] = from_float<T>(to_float(a.value[k]) + to_float(b.value[k]));
        const float value = to_float(h[i].value[k]);
        squares += value * value;
      }
    }
  }
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(p.dim) + p.eps);
  T* y = static_cast<T*>(p.y) + base;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = lane + 32 * i;
    if (pack < packs) {
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(h[i].value[k]) * rstd);
      store_pack<T, N>(y + pack * N, out);
    }
  }
  if (p.rstd != nullptr && lane == 0) p.rstd[row] = rstd;
}

// grad_y, or the sum of the two gradients in float32.
template <typename T, int N>
__device__ inline void load_grad(const T* grad_y, const T* grad_y2, int64_t i, float (&g)[N]) {
  const Pack<T, N> first = load_pack<T, N>(grad_y + i);
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = to_float(first.value[k]);
  if (grad_y2 == nullptr) return;
  const Pack<T, N> second = load_pack<T, N>(grad_y2 + i);
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] += to_float(second.value[k]);
}

template <typename T, int kPacks>
__global__ void __launch_bounds__(kWarpsPerBlock * 32) backward_registers(RmsNormBackward p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T);
  // The last rows first: of grad_y they were written last.
  const int64_t row = (int64_t{gridDim.x} - 1 - blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
  if (row >= p.rows) return;
  const int lane = threadIdx.x % 32;
  const int packs = static_cast<int>(p.dim / N);
  const int64_t base = row * p.dim;
  const T* grad_y = static_cast<const T*>(p.grad_y) + base;
  const T* grad_y2 = p.grad_y2 != nullptr ? static_cast<const T*>(p.grad_y2) + base : nullptr;
  const T* y = static_cast<const T*>(p.y) + base;

  float g_row[kPacks][N];
  Pack<T, N> y_row[kPacks];
  float dot = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = lane + 32 * i;
    if (pack < packs) {
      load_grad<T, N>(grad_y, grad_y2, pack * N, g_row[i]);
      y_row[i] = load_pack<T, N>(y + pack * N);
#pragma unroll
      for (int k = 0; k < N; ++k) dot += g_row[i][k] * to_float(y_row[i].value[k]);
    }
  }
  const float rstd = p.rstd[row];
  const float along = warp_sum(dot) / static_cast<float>(p.dim);
  T* grad = static_cast<T*>(p.grad) + base;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = lane + 32 * i;
    if (pack < packs) {
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        out.value[k] = from_float<T>(rstd * (g_row[i][k] - to_float(y_row[i].value[k]) * along));
      }
      store_pack<T, N>(grad + pack * N, out);
    }
  }
}

// Any width and alignment. kBlock: a block owns a row, otherwise a warp does. N elements are moved at a time.
template <bool kBlock>
struct RowOwner {
  static constexpr int kThreads = kBlock ? kBlockWarps * 32 : 32;
  static constexpr int kRowsPerBlock = kBlock ? 1 : kWarpsPerBlock;
  __device__ static int64_t row() {
    return int64_t{blockIdx.x} * kRowsPerBlock + (kBlock ? 0 : static_cast<int>(threadIdx.x) / 32);
  }
  __device__ static int thread() { return kBlock ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % 32; }
  __device__ static float sum(float value) {
    if constexpr (kBlock) {
      return block_sum<kBlockWarps>(value);
    } else {
      return warp_sum(value);
    }
  }
};

template <typename T, int N, bool kBlock>
__global__ void forward_loop(RmsNormForward p) {
  wait_for_earlier();
  using Owner = RowOwner<kBlock>;
  const int64_t row = Owner::row();
  if (row >= p.rows) return;
  const int64_t base = row * p.dim;
  const T* x = static_cast<const T*>(p.x) + base;
  const T* residual = static_cast<const T*>(p.residual) + base;
  const auto add = [&](int64_t i, Pack<T, N>& h) {
    const Pack<T, N> a = load_pack<T, N>(x + i);
    const Pack<T, N> b = load_pack<T, N>(residual + i);
#pragma unroll
    for (int k = 0; k < N; ++k) h.value[k] = from_float<T>(to_float(a.value[k]) + to_float(b.value[k]));
  };
  float squares = 0;
  for (int64_t i = Owner::thread() * N; i < p.dim; i += Owner::kThreads * N) {
    Pack<T, N> h;
    add(i, h);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += to_float(h.value[k]) * to_float(h.value[k]);
  }
  const float rstd = rsqrtf(Owner::sum(squares) / static_cast<float>(p.dim) + p.eps);
  T* y = static_cast<T*>(p.y) + base;
  for (int64_t i = Owner::thread() * N; i < p.dim; i += Owner::kThreads * N) {
    Pack<T, N> h, out;
    add(i, h);
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(h.value[k]) * rstd);
    store_pack<T, N>(y + i, out);
  }
  if (p.rstd != nullptr && Owner::thread() == 0) p.rstd[row] = rstd;
}

template <typename T, int N, bool kBlock>
__global__ void backward_loop(RmsNormBackward p) {
  wait_for_earlier();
  using Owner = RowOwner<kBlock>;
  const int64_t row = Owner::row();
  if (row >= p.rows) return;
  const int64_t base = row * p.dim;
  const T* grad_y = static_cast<const T*>(p.grad_y) + base;
  const T* grad_y2 = p.grad_y2 != nullptr ? static_cast<const T*>(p.grad_y2) + base : nullptr;
  const T* y = static_cast<const T*>(p.y) + base;
  float dot = 0;
  for (int64_t i = Owner::thread() * N; i < p.dim; i += Owner::kThreads * N) {
    float g[N];
    load_grad<T, N>(grad_y, grad_y2, i, g);
    const Pack<T, N> y_pack = load_pack<T, N>(y + i);
#pragma unroll
    for (int k = 0; k < N; ++k) dot += g[k] * to_float(y_pack.value[k]);
  }
  const float rstd = p.rstd[row];
  const float along = Owner::sum(dot) / static_cast<float>(p.dim);
  T* grad = static_cast<T*>(p.grad) + base;
  for (int64_t i = Owner::thread() * N; i < p.dim; i += Owner::kThreads * N) {
    float g[N];
    load_grad<T, N>(grad_y, grad_y2, i, g);
    const Pack<T, N> y_pack = load_pack<T, N>(y + i);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(rstd * (g[k] - to_float(y_pack.value[k]) * along));
    store_pack<T, N>(grad + i, out);
  }
}

template <typename T, int kPacks>
cudaError_t start_registers(const RmsNormForward& p, unsigned blocks, cudaStream_t stream) {
  return start_early(&forward_registers<T, kPacks>, blocks, kWarpsPerBlock * 32, 0, stream, p);
}
template <typename T, int kPacks>
cudaError_t start_registers(const RmsNormBackward& p, unsigned blocks, cudaStream_t stream) {
  return start_early(&backward_registers<T, kPacks>, blocks, kWarpsPerBlock * 32, 0, stream, p);
}
template <typename T, int N, bool kBlock>
cudaError_t start_loop(const RmsNormForward& p, unsigned blocks, int threads, cudaStream_t stream) {
  return start_early(&forward_loop<T, N, kBlock>, blocks, threads, 0, stream, p);
}
template <typename T, int N, bool kBlock>
cudaError_t start_loop(const RmsNormBackward& p, unsigned blocks, int threads, cudaStream_t stream) {
  return start_early(&backward_loop<T, N, kBlock>, blocks, threads, 0, stream, p);
}

bool aligned(const RmsNormForward& p) {
  return aligned16(p.x) && aligned16(p.residual) && aligned16(p.y);
}
bool aligned(const RmsNormBackward& p) {
  return aligned16(p.grad_y) && aligned16(p.grad_y2) && aligned16(p.y) && aligned16(p.grad);
}

template <typename T, typename Params>
cudaError_t start(const Params& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const int64_t row_blocks = (p.rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
  if (p.rows > INT32_MAX) return cudaErrorInvalidConfiguration;  // the grid's limit
  const auto by_warp = static_cast<unsigned>(row_blocks);
  const auto by_block = static_cast<unsigned>(p.rows);
  const bool vector = p.dim % N == 0 && aligned(p);
  const int64_t packs = (p.dim / N + 31) / 32;
  if (vector && packs <= 1) return start_registers<T, 1>(p, by_warp, stream);
  if (vector && packs <= 2) return start_registers<T, 2>(p, by_warp, stream);
  if (vector && packs <= 4) return start_registers<T, 4>(p, by_warp, stream);
  if (vector && packs <= 8) return start_registers<T, 8>(p, by_warp, stream);
  if (vector) return start_loop<T, N, true>(p, by_block, kBlockWarps * 32, stream);
  if (p.dim >= kBlockDim) return start_loop<T, 1, true>(p, by_block, kBlockWarps * 32, stream);
  return start_loop<T, 1, false>(p, by_warp, kWarpsPerBlock * 32, stream);
}

}  // namespace

cudaError_t launch(const RmsNormForward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const RmsNormBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
