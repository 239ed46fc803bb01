#pragma once
// Programmatic dependent launch (CUDA C++ Programming Guide, "Programmatic Dependent Launch"): a kernel may begin while
// the one before it still runs. Its blocks take the room that finished ones leave, and set up barriers meanwhile.

#include <cuda_runtime.h>

#include <cstddef>

namespace hrm::ops::cuda {

// Every thread of a kernel that start_early() or sm90::start() queues calls this before it touches memory that an
// earlier kernel wrote or reads: it returns when all earlier kernels are done and what they wrote is visible. From then
// on the next kernel may begin in the same way.
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Lets the next kernel begin before this one's wait, with all threads or one of each block. That kernel's own wait
// still returns only when this one is done, so what it touches from then on is safe. What it reads before its wait must
// have been written before the kernels that this one waits for. Worth it where both load weights before they wait.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For kernels of a chain of which some use much shared memory: a multiprocessor divides its memory between that and the
// first-level cache, and a kernel that wants another division waits until it is empty.
template <class... Params>
cudaError_t want_shared_memory(void (*kernel)(Params...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

// Queues a kernel that is compiled for every GPU. Where the code that the device runs knows how to wait, it may begin
// before the kernels queued earlier are done. In clusters of `cluster` blocks, which only such code knows.
template <class... Params, class... Args>
cudaError_t start_early_clusters(void (*kernel)(Params...), dim3 blocks, int threads, size_t shared, int cluster,
                                 cudaStream_t stream, const Args&... args) {
  cudaFuncAttributes code{};
  const cudaError_t error = cudaFuncGetAttributes(&code, kernel);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = code.ptxVersion < 90 ? 0 : cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <class... Params, class... Args>
cudaError_t start_early(void (*kernel)(Params...), dim3 blocks, int threads, size_t shared, cudaStream_t stream,
                        const Args&... args) {
  return start_early_clusters(kernel, blocks, threads, shared, 1, stream, args...);
}

}  // namespace hrm::ops::cuda
