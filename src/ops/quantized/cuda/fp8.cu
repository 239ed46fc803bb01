#include "ops/quantized/cuda/fp8.h"

#include "ops/cuda/block_items.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_sizes.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = 8192;  // of a block of one tensor's kernels; a multiple of kThreads * 8

template <typename T, int N>
__device__ inline void quantize_range(const T* from, uint8_t* to, int64_t size, float scale, Fp8Sizes<T>& sizes) {
#pragma unroll 4
  for (int64_t i = int64_t{threadIdx.x} * N; i < size; i += int64_t{kThreads} * N) {
    store_pack<uint8_t, N>(to + i, sizes.quantize(load_pack<T, N>(from + i), scale));
  }
}

// A block's elements: in packs of 16 bytes where `wide`, the rest one by one.
template <typename T>
__device__ inline void quantize_block(const T* from, uint8_t* to, int64_t size, float* slot) {
  constexpr int N = 16 / sizeof(T);
  const float scale = slot[0];
  Fp8Sizes<T> sizes;
  const bool wide = reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % N == 0;
  const int64_t whole = wide ? size / N * N : 0;
  quantize_range<T, N>(from, to, whole, scale, sizes);
  quantize_range<T, 1>(from + whole, to + whole, size - whole, scale, sizes);
  raise_amax_by_block<kThreads / 32>(slot, sizes.bits());
}

__device__ inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const QuantizeFp8 p) {
  wait_for_earlier();
  const int64_t first = int64_t{blockIdx.x} * kBlockElements;
  quantize_block(static_cast<const T*>(p.from) + first, static_cast<uint8_t*>(p.to) + first,
                 smaller(p.size - first, kBlockElements), p.slot);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_many_kernel(const __grid_constant__ QuantizeManyFp8 p) {
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x), tensor = item_of_block(p, p.count, block);
  const int64_t first = int64_t{block - p.first_block[tensor]} * kFp8ElementsPerBlock;
  quantize_block(static_cast<const T*>(p.from[tensor]) + first, static_cast<uint8_t*>(p.to[tensor]) + first,
                 smaller(p.size[tensor] - first, kFp8ElementsPerBlock), p.slots + kFp8SlotFloats * tensor);
}

template <typename T, int N>
__device__ inline void add_range(const T* a, const T* b, T* sum, uint8_t* sum8, int64_t size, float scale,
                                 Fp8Sizes<T>& sizes) {
#pragma unroll 4
  for (int64_t i = int64_t{threadIdx.x} * N; i < size; i += int64_t{kThreads} * N) {
    const Pack<T, N> x = load_pack<T, N>(a + i), y = load_pack<T, N>(b + i);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.value[k] = from_float<T>(to_float(x.value[k]) + to_float(y.value[k]));
    store_pack<T, N>(sum + i, out);
    store_pack<uint8_t, N>(sum8 + i, sizes.quantize(out, scale));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add_kernel(const AddFp8 p) {
  wait_for_earlier();
  constexpr int N = 16 / sizeof(T);
  // The last elements first: the product before has written them last, and they are still in the L2 cache.
  const int64_t first = (int64_t{gridDim.x} - 1 - blockIdx.x) * kBlockElements;
  const int64_t size = smaller(p.size - first, kBlockElements);
  const T* a = static_cast<const T*>(p.a) + first;
  const T* b = static_cast<const T*>(p.b) + first;
  T* sum = static_cast<T*>(p.sum) + first;
  uint8_t* sum8 = static_cast<uint8_t*>(p.sum8) + first;
  const float scale = p.slot[0];
  Fp8Sizes<T> sizes;
  const uintptr_t pointers =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(sum);
  const int64_t whole = pointers % 16 == 0 && reinterpret_cast<uintptr_t>(sum8) % N == 0 ? size / N * N : 0;
  add_range<T, N>(a, b, sum, sum8, whole, scale, sizes);
  add_range<T, 1>(a + whole, b + whole, sum + whole, sum8 + whole, size - whole, scale, sizes);
  raise_amax_by_block<kThreads / 32>(p.slot, sizes.bits());
}

// A thread has a slot: there are a few dozen, with a short history each.
__global__ void update_kernel(const UpdateFp8Scales p) {
  wait_for_earlier();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  float* slot = p.slots + p.slot_floats * i;
  const bool wide = p.slot_floats > kFp8SlotFloats;
  float* history = p.history + p.length * i;
  const float amax = slot[2];
  float newest = isfinite(amax) ? amax : history[0];
  float largest = newest;
  for (int64_t k = 0; k < p.length; ++k) {
    const float older = history[k];
    history[k] = newest;
    newest = older;
    largest = fmaxf(largest, history[k]);
  }
  const float scale = (wide ? slot[3] : kFp8Largest) * exp2f(-p.margin) / largest;
  if (largest > 0 && isfinite(largest) && isfinite(scale)) {
    slot[0] = scale;
    slot[1] = 1 / scale;
    if (wide) slot[4] = slot[1];
  }
  slot[2] = 0;
  if (wide) slot[5] = slot[6] = slot[7] = 0;
}

unsigned blocks_of(int64_t size) {
  return static_cast<unsigned>((size + kBlockElements - 1) / kBlockElements);
}

// Calls `run` with a value of the element's type.
template <class Run>
cudaError_t by_element(Element element, const Run& run) {
  switch (element) {
    case Element::f32:
      return run(float{});
    case Element::bf16:
      return run(__nv_bfloat16{});
    default:
      return run(__half{});
  }
}

}  // namespace

cudaError_t launch(const QuantizeFp8& params, cudaStream_t stream) {
  if (params.size == 0) return cudaSuccess;
  return by_element(params.element, [&](auto value) {
    return start_early(quantize_kernel<decltype(value)>, blocks_of(params.size), kThreads, 0, stream, params);
  });
}

cudaError_t launch(const QuantizeManyFp8& params, cudaStream_t stream) {
  if (params.count == 0 || params.first_block[params.count] == 0) return cudaSuccess;
  return by_element(params.element, [&](auto value) {
    return start_early(quantize_many_kernel<decltype(value)>, static_cast<unsigned>(params.first_block[params.count]),
                       kThreads, 0, stream, params);
  });
}

cudaError_t launch(const AddFp8& params, cudaStream_t stream) {
  if (params.size == 0) return cudaSuccess;
  return by_element(params.element, [&](auto value) {
    return start_early(add_kernel<decltype(value)>, blocks_of(params.size), kThreads, 0, stream, params);
  });
}

cudaError_t launch(const UpdateFp8Scales& params, cudaStream_t stream) {
  if (params.count == 0) return cudaSuccess;
  return start_early(update_kernel, static_cast<unsigned>((params.count + 127) / 128), 128, 0, stream, params);
}

}  // namespace hrm::ops::cuda
