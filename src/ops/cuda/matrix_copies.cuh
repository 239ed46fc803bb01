#pragma once
// Tiles from global to shared memory without waiting for them, and from there to the tensor cores' operands (PTX ISA:
// cp.async, ldmatrix). No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda {

// Turing (7.5) lacks these instructions. The launcher does not take the kernels there, but they are compiled.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HRM_SM80_ASM(...) __trap()
#else
#define HRM_SM80_ASM(...) asm volatile(__VA_ARGS__)
#endif

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// 16 bytes from device memory to shared memory past the registers; zeros where !valid (then `from` is not read).
__device__ inline void copy_async(uint32_t to, const void* from, bool valid) {
  HRM_SM80_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ inline void copy_async_commit() {
  HRM_SM80_ASM("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
__device__ inline void copy_async_wait() {
  HRM_SM80_ASM("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace hrm::ops::cuda
