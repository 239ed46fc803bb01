// Splits a qkv projection's output into rotated q and k, for attention kernels without positions, and computes the
// gradient of this step. In one pass, a thread reads its table entries once for both q and k.
#include "ops/attention/cuda/attention.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <int N>
struct Angles {
  float cos[N], sin[N];
};

template <int N>
__device__ inline Angles<N> load_angles(const float* cos, const float* sin, int64_t at) {
  Angles<N> out;
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    const auto c = load_pack<float, kWidth>(cos + at + i), s = load_pack<float, kWidth>(sin + at + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      out.cos[i + j] = c.value[j];
      out.sin[i + j] = s.value[j];
    }
  }
  return out;
}

// a and b: N pairs. kSign -1 rotates back.
template <int kSign, typename T, int N>
__device__ inline void turn_packs(Pack<T, N>& a, Pack<T, N>& b, const Angles<N>& angles) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float x = to_float(a.value[i]), y = to_float(b.value[i]);
    turn(x, y, angles.cos[i], kSign * angles.sin[i]);
    a.value[i] = from_float<T>(x);
    b.value[i] = from_float<T>(y);
  }
}

// The location of an item: N pairs of dimensions of one head at one position.
struct Item {
  int64_t batch, row;
  int head, pair;
};

__device__ inline Item item_at(int64_t index, int packs, int n, int heads, int64_t length) {
  Item item;
  item.pair = static_cast<int>(index % packs) * n;
  index /= packs;
  item.head = static_cast<int>(index % heads);
  index /= heads;
  item.row = index % length;
  item.batch = index / length;
  return item;
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateQkv p) {
  const int half = p.head_dim / 2, packs = half / N;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.batch * p.length * p.heads * packs) return;
  const Item item = item_at(index, packs, N, p.heads, p.length);
  const int64_t width = static_cast<int64_t>(p.heads) * p.head_dim;
  const int64_t at = (item.batch * p.length + item.row) * 3 * width + item.head * p.head_dim + item.pair;
  const T* const from = static_cast<const T*>(p.from);
  T* const to = static_cast<T*>(p.to);
  Pack<T, N> low[2], high[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    low[part] = load_pack<T, N>(from + at + part * width);
    high[part] = load_pack<T, N>(from + at + part * width + half);
  }
  if (from != to) {
    const Pack<T, N> a = load_pack<T, N>(from + at + 2 * width), b = load_pack<T, N>(from + at + 2 * width + half);
    store_pack<T, N>(to + at + 2 * width, a);
    store_pack<T, N>(to + at + 2 * width + half, b);
  }
  const Angles<N> angles = load_angles<N>(p.cos, p.sin, item.row * half + item.pair);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    turn_packs<1>(low[part], high[part], angles);
    store_pack<T, N>(to + at + part * width, low[part]);
    store_pack<T, N>(to + at + part * width + half, high[part]);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) rotate_backward_kernel(RotateQkvBackward p) {
  const int half = p.head_dim / 2, packs = half / N;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.batch * p.length * p.heads * packs) return;
  const Item item = item_at(index, packs, N, p.heads, p.length);
  const int64_t width = static_cast<int64_t>(p.heads) * p.head_dim;
  const int64_t at = (item.batch * p.length + item.row) * 3 * width + item.head * p.head_dim + item.pair;
  Pack<T, N> low[3], high[3];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const T* const from = static_cast<const T*>(p.grads[part]) + item.batch * p.batch_stride[part] +
                          item.head * p.head_stride[part] + item.row * p.row_stride[part] + item.pair;
    low[part] = load_pack<T, N>(from);
    high[part] = load_pack<T, N>(from + half);
  }
  if (p.cos != nullptr) {
    const Angles<N> angles = load_angles<N>(p.cos, p.sin, item.row * half + item.pair);
    turn_packs<-1>(low[0], high[0], angles);
    turn_packs<-1>(low[1], high[1], angles);
  }
  T* const to = static_cast<T*>(p.grad_qkv) + at;
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    store_pack<T, N>(to + part * width, low[part]);
    store_pack<T, N>(to + part * width + half, high[part]);
  }
}

template <typename T, int N>
void start(const RotateQkv& p, unsigned blocks, cudaStream_t stream) {
  rotate_kernel<T, N><<<blocks, kThreads, 0, stream>>>(p);
}
template <typename T, int N>
void start(const RotateQkvBackward& p, unsigned blocks, cudaStream_t stream) {
  rotate_backward_kernel<T, N><<<blocks, kThreads, 0, stream>>>(p);
}

bool aligned(const RotateQkv& p, int) {
  return aligned16(p.from) && aligned16(p.to);
}
bool aligned(const RotateQkvBackward& p, int n) {
  bool out = aligned16(p.grad_qkv);
  for (int part = 0; part < 3; ++part) {
    out = out && aligned16(p.grads[part]) && p.batch_stride[part] % n == 0 && p.head_stride[part] % n == 0 &&
          p.row_stride[part] % n == 0;
  }
  return out;
}

template <typename T, typename Params>
cudaError_t start_by_width(const Params& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const int half = p.head_dim / 2;
  const bool vector = half % N == 0 && aligned16(p.cos) && aligned16(p.sin) && aligned(p, N);
  const int64_t items = p.batch * p.length * p.heads * (vector ? half / N : half);
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (vector) {
    start<T, N>(p, static_cast<unsigned>(blocks), stream);
  } else {
    start<T, 1>(p, static_cast<unsigned>(blocks), stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const RotateQkv& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start_by_width<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const RotateQkvBackward& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start_by_width<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
