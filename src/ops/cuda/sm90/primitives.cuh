#pragma once
// Hopper's own instructions as thin functions: mbarriers, the tensor memory accelerator (TMA), clusters and wgmma
// (CUDA C++ Programming Guide; PTX ISA 8.0, sections on mbarrier, cp.async.bulk.tensor and wgmma). No torch headers.
//
// The functions assemble only for sm_90a. Kernels that use them wrap their body in `#if HRM_SM90A` and their launcher
// checks the device's capability.

#include <cuda.h>  // CUtensorMap; the driver library itself is not linked
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HRM_SM90A 1
#else
#define HRM_SM90A 0
#endif

namespace hrm::ops::cuda::sm90 {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier: 8 bytes of shared memory. A phase ends when all arrivals and all announced bytes have come. ----

__device__ inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Makes initialised barriers visible to the TMA and to the other blocks of a cluster; __syncthreads() or cluster_sync()
// must follow.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival, and the phase also waits for `bytes` that the TMA will deliver.
__device__ inline void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Arrives at the barrier of the same offset in block `rank` of the cluster: tells its producer that a stage is free. It
// publishes no ordinary stores to that block (a release at cluster scope would cost a fence of all memory each time).
__device__ inline void barrier_arrive_remote(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

__device__ inline bool barrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits until the phase of this parity has ended. The first phase has parity 0; waiting for parity 1 on a fresh barrier
// returns at once, which is how a producer finds all stages empty.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Whether the phase of this parity has ended; does not wait.
__device__ inline bool barrier_test(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// barrier_wait() where the arrivals come from other blocks of the cluster: what they wrote before is visible after.
__device__ inline void barrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// Position in a ring of stages, and the parity that a consumer waits for there; a producer waits for parity ^ 1.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void advance(int steps) {
    stage += steps;
    while (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

// ---- TMA. Destinations in shared memory are aligned to 1024 bytes where the map swizzles by 128 bytes. ----

__device__ inline void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// x counts elements of the innermost dimension. Elements outside of the tensor arrive as zeros and count as bytes.
__device__ inline void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

__device__ inline void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ inline void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z, int u,
                                int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
      : "memory");
}

// Delivers to the same offset in every block of the cluster whose bit in `blocks` is set; each block's own barrier
// (same offset) gets the bytes.
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, uint16_t blocks, int x,
                                          int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(x), "r"(y)
      : "memory");
}

// Shared memory to the tensor; what falls outside of it is not written. The data must have been fenced by
// fence_async_shared() in each writing thread, then a barrier among them.
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ inline void tma_store(const CUtensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y)
               : "memory");
}

// Adds float32 to the tensor, in the L2 cache; the rest as tma_store.
__device__ inline void tma_add(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// At most kPending of this thread's store groups still read shared memory.
template <int kPending>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Ordinary stores to shared memory before, TMA and wgmma reads after.
__device__ inline void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit elements, held as accumulators are: row lane / 4, columns 2 * (lane % 4) and the next.
// Lane l says where row l % 8 of matrix l / 8 goes, 16 bytes.
__device__ inline void store_matrices(void* row, uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(first), "r"(second), "r"(third), "r"(fourth)
               : "memory");
}

// ---- Clusters ----

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Without the fence, which would wait for loads that are under way, too: tells of nothing but that this thread runs,
// and of barriers behind barrier_init_fence().
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Writes into the shared memory of block `rank`, at the offset of `to` in this block's. The barrier there counts 4
// bytes, as for the TMA's deliveries.
__device__ inline void store_remote_counted(float* to, uint64_t* barrier, uint32_t rank, float value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %2;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote_to], %3, [remote_barrier];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "r"(__float_as_uint(value))
      : "memory");
}

// The same with 16 bytes.
__device__ inline void store_16_remote(void* to, uint64_t* barrier, uint32_t rank, const uint4& value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %2;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [remote_to], {%3, %4, %5, %6}, "
      "[remote_barrier];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

// ---- Warps and registers ----

// Barrier `id` (1 to 15) among `threads` threads, whole warps.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Every warp of a warpgroup gives up or gets registers; kRegisters a multiple of 8.
template <int kRegisters>
__device__ inline void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- wgmma: D (64 x N, float32 in the registers of a warpgroup) += A (64 x 16) * B (16 x N) ----
//
// Thread t of the warpgroup, with warp = t / 32, g = t % 32 / 4, q = t % 4, holds of row 16 * warp + g + 8 * i and
// column 8 * j + 2 * q + e the element d[4 * j + 2 * i + e] (i, e in {0, 1}, j < N / 8).

// Operands in shared memory are described by 64 bits. Swizzled by 128 bytes: 16-byte chunk c of a 128-byte row r stands
// at chunk c ^ (r % 8), which is what a TMA box of 128 bytes in x with CU_TENSOR_MAP_SWIZZLE_128B writes.
//
// K-major: row = M or N index, 64 16-bit elements of K in a row; 8 rows make an atom of 1024 bytes,
// atoms follow each other. The next 32 bytes of K inside of the row: descriptor + 2.
__device__ inline uint64_t descriptor_k_major(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kNextEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kNextEightRows | (uint64_t{1} << 16) | ((shared_address(tile) & 0x3ffff) >> 4);
}

// MN-major: row = K index, 64 16-bit elements of M or N in a row; 8 rows (of K) make an atom of 1024 bytes.
// `next_chunk`: bytes from 64 elements of M or N to the next 64; `next_eight`: bytes from 8 rows of K to the next 8.
// The next 16 rows of K: descriptor + 2 * next_eight / 16.
__device__ inline uint64_t descriptor_mn_major(const void* tile, uint32_t next_chunk, uint32_t next_eight = 1024) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (uint64_t{next_eight >> 4} << 32) | (uint64_t{next_chunk >> 4} << 16) |
         ((shared_address(tile) & 0x3ffff) >> 4);
}

// Before the first wgmma, and whenever registers that wgmma reads were written by other instructions.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler that the registers change here: it may not move their use across a wait.
template <int kCount>
__device__ inline void registers_fence(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

enum class Major { k, mn };

}  // namespace hrm::ops::cuda::sm90
