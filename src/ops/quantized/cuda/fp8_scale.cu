#include "ops/quantized/cuda/fp8_scale.h"

#include "ops/cuda/block_items.cuh"
#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8.cuh"
#include "ops/quantized/cuda/fp8_sizes.cuh"
#include "ops/quantized/cuda/fp8_tile.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = 16384;  // a multiple of kThreads * 8

template <typename T, int N>
__device__ inline void add_range(const T* from, int64_t begin, int64_t end, Fp8Sizes<T>& sizes) {
#pragma unroll 4
  for (int64_t i = begin + int64_t{threadIdx.x} * N; i < end; i += int64_t{kThreads} * N) {
    const Pack<T, N> x = load_pack<T, N>(from + i);
#pragma unroll
    for (int k = 0; k < N; k += 2) sizes.add(x.value[k], k + 1 < N ? x.value[k + 1 < N ? k + 1 : k] : x.value[k]);
  }
}

// The largest size of this thread's elements, as the bits of a float: of those from `begin` on, at most kBlockElements.
// wide: `from` is aligned to 16 bytes.
template <typename T>
__device__ inline uint32_t largest_of_block(const T* from, int64_t begin, int64_t size, bool wide) {
  const int64_t end = begin + kBlockElements < size ? begin + kBlockElements : size;
  constexpr int N = 16 / sizeof(T);
  Fp8Sizes<T> sizes;
  const int64_t packed = wide ? begin + (end - begin) / N * N : begin;
  if (wide) add_range<T, N>(from, begin, packed, sizes);
  add_range<T, 1>(from, packed, end, sizes);
  return sizes.bits();
}

// Rounding keeps the order of sizes, so the largest rounded one is the largest one, rounded.
__device__ inline uint32_t rounded_size(uint32_t bits, Element to) {
  const float size = __uint_as_float(bits);
  if (to == Element::bf16) return __float_as_uint(to_float(from_float<__nv_bfloat16>(size)));
  if (to == Element::f16) return __float_as_uint(to_float(from_float<__half>(size)));
  return bits;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) raise_kernel(const RaiseFp8Amax p, bool wide) {
  wait_for_earlier();
  const int64_t begin = int64_t{blockIdx.x} * kBlockElements;
  raise_amax_by_block<kThreads / 32>(p.slot, largest_of_block(static_cast<const T*>(p.from), begin, p.size, wide));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) raise_many_kernel(const __grid_constant__ RaiseManyFp8Amax p) {
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x), tensor = item_of_block(p, p.count, block);
  const auto* from = static_cast<const T*>(p.from[tensor]);
  const bool wide = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const int64_t begin = int64_t{block - p.first_block[tensor]} * kBlockElements;
  const uint32_t size = rounded_size(largest_of_block(from, begin, p.size[tensor], wide), p.rounded);
  raise_amax_by_block<kThreads / 32>(p.slots + int64_t{tensor} * p.slot_pitch, size);
}

// Elements of T, rounded to R, in e4m3: the tile of whichever matrix the block has.
template <typename T, typename R>
__global__ void __launch_bounds__(kTileThreads) quantize_weights_kernel(const __grid_constant__ QuantizeFp8Weights p) {
  __shared__ Fp8Tile tile;
  constexpr int N = 16 / sizeof(T), kPacks = kTileColumns / N, kEach = kTileRows * kPacks / kTileThreads;
  const int block = static_cast<int>(blockIdx.x), tensor = item_of_block(p, p.count, block);
  const int64_t rows = p.rows[tensor], columns = p.columns[tensor];
  const int across = static_cast<int>((columns + kTileColumns - 1) / kTileColumns), at = block - p.first_block[tensor];
  const int64_t first_row = int64_t{at / across} * kTileRows, first_column = int64_t{at % across} * kTileColumns;
  const auto* from = static_cast<const T*>(p.from[tensor]);
  auto *values = static_cast<uint8_t*>(p.values[tensor]), *transposed = static_cast<uint8_t*>(p.transposed[tensor]);
  float* const slot = p.slots + int64_t{tensor} * p.slot_pitch;
  wait_for_earlier();
  const float scale = slot[0];
  Fp8Sizes<R> sizes;
  // All loads before the first store, behind which the compiler would not move them up.
  Pack<T, N> in[kEach];
  bool has[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int64_t row = first_row + place / kPacks, column = first_column + place % kPacks * N;
    has[i] = row < rows && column < columns;
    if (has[i]) in[i] = load_pack<T, N>(from + row * columns + column);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!has[i]) continue;
    const int place = static_cast<int>(threadIdx.x) + i * kTileThreads, row = place / kPacks;
    const int column = place % kPacks * N;
    Pack<R, N> rounded;
#pragma unroll
    for (int k = 0; k < N; ++k) rounded.value[k] = from_float<R>(to_float(in[i].value[k]));
    const Pack<uint8_t, N> out = sizes.quantize(rounded, scale);
    store_pack(values + (first_row + row) * columns + first_column + column, out);
    if (transposed != nullptr) tile.keep(row, column, out);
  }
  raise_amax_by_block<kTileThreads / 32>(slot, sizes.bits());
  if (transposed == nullptr) return;
  __syncthreads();
  tile.store_transposed<true>(transposed, first_row, first_column, rows, columns);
}

__global__ void scale_kernel(const ScaleFp8Now p) {
  wait_for_earlier();
  const float amax = p.now[2], largest = p.slot[3];
  const float wanted = largest * exp2f(-p.margin) / amax;
  const float scale = amax > 0 && isfinite(amax) && isfinite(wanted) ? wanted : p.slot[0];
  p.now[0] = scale;
  p.now[1] = p.now[4] = 1 / scale;
  p.now[2] = p.now[5] = p.now[6] = p.now[7] = 0;
  p.now[3] = largest;
  atomicMax(reinterpret_cast<int*>(p.slot + 2), __float_as_int(amax));
}

}  // namespace

cudaError_t launch(const RaiseFp8Amax& params, cudaStream_t stream) {
  const int64_t blocks = (params.size + kBlockElements - 1) / kBlockElements;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_early(&raise_kernel<T>, static_cast<unsigned>(blocks), kThreads, 0, stream, params,
                       aligned16(params.from));
  });
}

void RaiseManyFp8Amax::add(const void* tensor, int64_t elements) {
  if (count == 0) first_block[0] = 0;
  from[count] = tensor;
  size[count] = elements;
  first_block[count + 1] = first_block[count] + static_cast<int32_t>((elements + kBlockElements - 1) / kBlockElements);
  ++count;
}

cudaError_t launch(const RaiseManyFp8Amax& params, cudaStream_t stream) {
  if (params.count == 0 || params.first_block[params.count] == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(params.first_block[params.count]);
  return by_element(params.element, [&](auto type) {
    return start_early(&raise_many_kernel<TypeIn<decltype(type)>>, blocks, kThreads, 0, stream, params);
  });
}

void QuantizeFp8Weights::add(const void* matrix, void* to, void* across, int64_t height, int64_t width) {
  if (count == 0) first_block[0] = 0;
  from[count] = matrix;
  values[count] = to;
  transposed[count] = across;
  rows[count] = static_cast<int32_t>(height);
  columns[count] = static_cast<int32_t>(width);
  const int64_t tiles = (height + kTileRows - 1) / kTileRows * ((width + kTileColumns - 1) / kTileColumns);
  first_block[count + 1] = first_block[count] + static_cast<int32_t>(tiles);
  ++count;
}

cudaError_t launch(const QuantizeFp8Weights& params, cudaStream_t stream) {
  if (params.count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(params.first_block[params.count]);
  const auto start = [&](auto kernel) { return start_early(kernel, blocks, kTileThreads, 0, stream, params); };
  return by_element(params.rounded, [&](auto to) {
    using R = TypeIn<decltype(to)>;
    return params.element == params.rounded ? start(&quantize_weights_kernel<R, R>)
                                            : start(&quantize_weights_kernel<float, R>);
  });
}

cudaError_t launch(const ScaleFp8Now& params, cudaStream_t stream) {
  return start_early(&scale_kernel, 1, 1, 0, stream, params);
}

}  // namespace hrm::ops::cuda
