#pragma once
// Host side of the kernels of this folder.

#include <cuda_runtime.h>

#include "ops/cuda/sm90/tensor_map.h"

namespace hrm::ops::cuda::sm90 {

// Every second kernel of a layer's forward pass, attention and SwiGLU, goes through its rows from the last to the
// first. What the kernel before has written last is then what it reads first, from the L2 cache, and what it writes
// last is what the kernel after it reads first.

// Queues a kernel with `shared` bytes of dynamic shared memory in clusters of `cluster` blocks. It may begin before the
// kernels queued earlier are done, so it must call wait_for_earlier() (early.cuh).
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
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

constexpr int bytes_of(MapElement element) {
  if (element == MapElement::float32) return 4;
  return element == MapElement::bits16 ? 2 : 1;
}

// A (rows, inner) in boxes of `box` rows x 128 bytes, for descriptor_k_major. Rows are a multiple of 16 bytes long.
inline cudaError_t encode_rows(CUtensorMap& map, const void* base, int64_t rows, int64_t inner, int box,
                               MapElement element = MapElement::bits16) {
  const int bytes = bytes_of(element);
  return encode_map(map, base, element, MapSwizzle::bytes128, {{inner, 0, 128 / bytes}, {rows, bytes * inner, box}});
}

// W (rows, inner), rows a multiple of 32, permuted inside of each 32 (elements.cuh), in boxes of 32 * `runs` rows x 128
// bytes.
inline cudaError_t encode_permuted_rows(CUtensorMap& map, const void* base, int64_t rows, int64_t inner, int runs,
                                        MapElement element = MapElement::bits16) {
  const int bytes = bytes_of(element);
  const int64_t stride = bytes * inner;
  return encode_map(map, base, element, MapSwizzle::bytes128,
                    {{inner, 0, 128 / bytes},
                     {2, stride, 2},
                     {4, 8 * stride, 4},
                     {4, 2 * stride, 4},
                     {rows / 32, 32 * stride, runs}});
}

// A (rows, columns), columns a multiple of 64, as (64, rows, columns / 64), in boxes of 64 x `box` x `chunks`: `chunks`
// swizzled blocks of `box` rows x 128 bytes. A weight that is stored transposed, (K, N), is read so, for
// descriptor_mn_major.
inline cudaError_t encode_column_chunks(CUtensorMap& map, const void* base, int64_t rows, int64_t columns, int box,
                                        int chunks) {
  return encode_map(map, base, MapElement::bits16, MapSwizzle::bytes128,
                    {{64, 0, 64}, {rows, 2 * columns, box}, {columns / 64, 128, chunks}});
}

}  // namespace hrm::ops::cuda::sm90
