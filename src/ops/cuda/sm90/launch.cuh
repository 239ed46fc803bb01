#pragma once
// Host side of the kernels of this folder.

#include <cuda_runtime.h>

#include "ops/cuda/sm90/tensor_map.h"

namespace hrm::ops::cuda::sm90 {

// Starts a kernel with `shared` bytes of dynamic shared memory in clusters of `cluster` blocks.
template <class Kernel, class... Args>
cudaError_t start(Kernel kernel, int blocks, int threads, int shared, int cluster, cudaStream_t stream,
                  const Args&... args) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// A (rows, inner) of 16-bit elements, in boxes of `box` rows x 64, for descriptor_k_major.
inline cudaError_t encode_rows(CUtensorMap& map, const void* base, int64_t rows, int64_t inner, int box) {
  return encode_map(map, base, MapElement::bits16, MapSwizzle::bytes128, {{inner, 0, 64}, {rows, 2 * inner, box}});
}

// W (rows, inner), rows a multiple of 32, permuted inside of each 32 (elements.cuh), in boxes of 32 * `runs` rows x 64.
inline cudaError_t encode_permuted_rows(CUtensorMap& map, const void* base, int64_t rows, int64_t inner, int runs) {
  const int64_t stride = 2 * inner;
  return encode_map(
      map, base, MapElement::bits16, MapSwizzle::bytes128,
      {{inner, 0, 64}, {2, stride, 2}, {4, 8 * stride, 4}, {4, 2 * stride, 4}, {rows / 32, 32 * stride, runs}});
}

}  // namespace hrm::ops::cuda::sm90
