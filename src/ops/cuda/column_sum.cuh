#pragma once
// The second step of a sum over many rows: parts that a first kernel left behind are added up, always in one order.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {

constexpr int kColumnLanes = 32;   // columns of a block
constexpr int kColumnSlices = 32;  // threads that share a column

// out[i] = sum over p < parts of partial[p * columns + i].
static __global__ void __launch_bounds__(kColumnLanes* kColumnSlices)
    column_sum(const float* partial, float* out, int parts, int64_t columns) {
  wait_for_earlier();
  __shared__ float slices[kColumnSlices][kColumnLanes + 1];
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes, slice = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int64_t i = int64_t{blockIdx.x} * kColumnLanes + lane;
  float total = 0;
  if (i < columns) {
#pragma unroll 8
    for (int part = slice; part < parts; part += kColumnSlices) total += partial[part * columns + i];
  }
  slices[slice][lane] = total;
  __syncthreads();
  if (slice > 0 || i >= columns) return;
#pragma unroll
  for (int other = 1; other < kColumnSlices; ++other) total += slices[other][lane];
  out[i] = total;
}

static inline cudaError_t start_column_sum(const float* partial, float* out, int parts, int64_t columns,
                                           cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((columns + kColumnLanes - 1) / kColumnLanes);
  return start_early(&column_sum, blocks, kColumnLanes * kColumnSlices, 0, stream, partial, out, parts, columns);
}

}  // namespace hrm::ops::cuda
