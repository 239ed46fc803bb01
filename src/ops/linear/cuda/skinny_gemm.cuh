#pragma once
// How the kernels for few rows load. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda {

// 16 bytes that are read once.
template <typename T>
__device__ inline uint4 load_once(const T* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// 16 bytes that an earlier kernel may have written, so after wait_for_earlier(); where it stands, whatever comes
// between it and its use.
template <typename T>
__device__ inline uint4 load_here(const T* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

// Asks for memory to come near; reads nothing, so that it may stand before wait_for_earlier().
__device__ inline void ask_for(const void* from, int64_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(static_cast<uint32_t>(bytes)) : "memory");
#else
  (void)from, (void)bytes;
#endif
}

}  // namespace hrm::ops::cuda
