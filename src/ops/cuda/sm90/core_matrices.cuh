#pragma once
// Operand tiles in shared memory without a swizzle, as rows of core matrices (8 x 16 bytes, 128 bytes in a row), and
// what moves them: one-dimensional bulk copies for tiles that lie in global memory as they will lie in shared memory,
// and the transposing matrix loads and stores of a warp. No torch headers.

#include "ops/cuda/sm90/primitives.cuh"

namespace hrm::ops::cuda::sm90 {

// A wgmma operand in the canonical layout without swizzle (PTX ISA, wgmma, "shared memory matrix layout"), at `address`
// of shared memory, a multiple of 16. A core matrix of a K-major operand is 8 rows of M or N x 16 bytes of K, of an
// MN-major one 8 rows of K x 16 bytes of M or N. `next_k`: bytes to the next core matrix along K, `next_mn`: along M or
// N. Written so that an address that changes costs one addition.
__device__ inline uint64_t descriptor_core(uint32_t address, uint32_t next_k, uint32_t next_mn) {
  const uint32_t low = (address >> 4) + (next_k >> 4 << 16);
  return uint64_t{next_mn >> 4} << 32 | low;
}

// `bytes` (a multiple of 16, both addresses aligned to 16) from global to shared memory; the barrier gets the bytes.
__device__ inline void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// 16 bytes from global to shared memory, past the registers; `load_async_wait` waits for all of this thread's.
__device__ inline void load_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void load_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 out;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(address)
               : "memory");
  return out;
}

// Four (two) 8 x 8 matrices of 16-bit elements; lane 8 * i + r gives the address of row r of matrix i. Transposed:
// a lane holds of each matrix column lane / 4, rows 2 * (lane % 4) and the next, which is a wgmma fragment of the
// transposed tile.
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void store_matrices_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
__device__ inline void store_matrices_transposed(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
}

}  // namespace hrm::ops::cuda::sm90
