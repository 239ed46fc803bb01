// Rows into e4m3 with a scale each, and 8-bit matrices transposed: both are bound by memory.

#include "ops/quantized/cuda/fp8_rows.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/quantized/cuda/fp8_rows.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kMostThreads = 256;

// A block has a row, and keeps it in registers: kPacks times 16 bytes a thread. The width is a multiple of what 16
// bytes hold, pointers are aligned to 16 bytes.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostThreads) quantize_rows_kernel(const QuantizeFp8Rows p) {
  constexpr int N = 16 / sizeof(T);
  const int width = static_cast<int>(p.width), threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * N, step = threads * N;
  const T* from = static_cast<const T*>(p.from) + int64_t{blockIdx.x} * p.width;
  uint8_t* to = p.values + int64_t{blockIdx.x} * p.width;
  wait_for_earlier();

  Pack<T, N> kept[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * step < width) kept[i] = load_pack<T, N>(from + first + i * step);
  }
  const auto numbers = [&](int i, float(&value)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = to_float(kept[i].value[j]);
    multiply_columns(value, p.factors, first + i * step);
  };
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * step >= width) continue;
    float value[N];
    numbers(i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = larger_bits(largest, value[j]);
  }
  const float scale = scale_for(largest_of_block(largest)), inverse = __fdiv_rn(1.0f, scale);
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * step >= width) continue;
    float value[N];
    numbers(i, value);
    store_e4m3(to + first + i * step, value, inverse);
  }
}

// Any width and alignment: the row is read twice, a number at a time.
template <typename T>
__global__ void __launch_bounds__(kMostThreads) quantize_rows_each_kernel(const QuantizeFp8Rows p) {
  const T* from = static_cast<const T*>(p.from) + int64_t{blockIdx.x} * p.width;
  uint8_t* to = p.values + int64_t{blockIdx.x} * p.width;
  wait_for_earlier();
  const auto number = [&](int64_t i) {
    const float value = to_float(from[i]);
    return p.factors == nullptr ? value : __fmul_rn(value, __ldg(p.factors + i));
  };
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < p.width; i += kMostThreads) largest = larger_bits(largest, number(i));
  const float scale = scale_for(largest_of_block(largest)), inverse = __fdiv_rn(1.0f, scale);
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < p.width; i += kMostThreads) {
    to[i] = static_cast<uint8_t>(e4m3_pair(__fmul_rn(number(i), inverse), 0));
  }
}

template <typename T>
cudaError_t quantize_rows(const QuantizeFp8Rows& p, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T), kMostPacks = 16;
  const dim3 grid(static_cast<unsigned>(p.rows));
  if (p.width == 0 || p.width % N != 0 || p.width > int64_t{kMostThreads} * kMostPacks * N || !aligned16(p.from) ||
      !aligned16(p.values) || !aligned16(p.factors)) {
    return start_early(&quantize_rows_each_kernel<T>, grid, kMostThreads, 0, stream, p);
  }
  const int packs = static_cast<int>(p.width / N);
  const int threads = packs < kMostThreads ? (packs + 31) / 32 * 32 : kMostThreads;
  const auto start = [&](auto* kernel) { return start_early(kernel, grid, threads, 0, stream, p); };
  if (packs <= threads) return start(&quantize_rows_kernel<T, 1>);
  if (packs <= 2 * threads) return start(&quantize_rows_kernel<T, 2>);
  if (packs <= 4 * threads) return start(&quantize_rows_kernel<T, 4>);
  if (packs <= 8 * threads) return start(&quantize_rows_kernel<T, 8>);
  return start(&quantize_rows_kernel<T, kMostPacks>);
}

// A thread transposes 16 x 16 bytes in registers. Eight threads side by side read 128 bytes of a row. A block's sixteen
// threads of a column write 256 bytes of what was that column.
constexpr int kCell = 16, kCellsAcross = 8, kCellsDown = 16, kCellThreads = kCellsAcross * kCellsDown;

// rows: four bytes of four rows; becomes four bytes of four columns.
__device__ inline void transpose_four(uint32_t (&rows)[4]) {
  const uint32_t low = __byte_perm(rows[0], rows[1], 0x5140), high = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t low2 = __byte_perm(rows[2], rows[3], 0x5140), high2 = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(low, low2, 0x5410);
  rows[1] = __byte_perm(low, low2, 0x7632);
  rows[2] = __byte_perm(high, high2, 0x5410);
  rows[3] = __byte_perm(high, high2, 0x7632);
}

__global__ void __launch_bounds__(kCellThreads) transpose_fp8_kernel(const TransposeFp8 p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t column = (int64_t{blockIdx.x} * kCellsAcross + thread % kCellsAcross) * kCell;
  const int64_t row = (int64_t{blockIdx.y} * kCellsDown + thread / kCellsAcross) * kCell;
  wait_for_earlier();
  const int64_t one = int64_t{blockIdx.x} * kCellsAcross * kCell + thread;
  if (blockIdx.y == 0 && one < p.columns) p.ones[one] = 1.0f;
  if (row >= p.rows || column >= p.columns) return;

  uint32_t word[kCell][4];  // of a row, then of a column
#pragma unroll
  for (int i = 0; i < kCell; ++i) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(p.from + (row + i) * p.columns + column);
    word[i][0] = loaded.x;
    word[i][1] = loaded.y;
    word[i][2] = loaded.z;
    word[i][3] = loaded.w;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t out[4][4];  // of the columns 4 w and those behind it
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t four[4] = {word[4 * i][w], word[4 * i + 1][w], word[4 * i + 2][w], word[4 * i + 3][w]};
      transpose_four(four);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j][i] = four[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<uint4*>(p.to + (column + 4 * w + j) * p.rows + row) =
          make_uint4(out[j][0], out[j][1], out[j][2], out[j][3]);
    }
  }
}

}  // namespace

cudaError_t launch(const QuantizeFp8Rows& params, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  if (params.rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  return by_element(params.element, [&](auto type) { return quantize_rows<TypeIn<decltype(type)>>(params, stream); });
}

cudaError_t launch(const TransposeFp8& params, cudaStream_t stream) {
  constexpr int64_t kAcross = kCellsAcross * kCell, kDown = kCellsDown * kCell;
  const int64_t across = (params.columns + kAcross - 1) / kAcross, down = (params.rows + kDown - 1) / kDown;
  if (across == 0 || down == 0) return cudaSuccess;
  if (across > INT32_MAX || down > 65535) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  return start_early(&transpose_fp8_kernel, grid, kCellThreads, 0, stream, params);
}

}  // namespace hrm::ops::cuda
