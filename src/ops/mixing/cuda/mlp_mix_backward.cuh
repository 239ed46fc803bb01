#pragma once
// What the kernels of mlp_mix's backward pass share. Legend as in mlp_mix.cuh. Two kinds of work:
//
//   mlp_mix_gradient.cuh          the gradient of h, and on the way what the weights' gradients are made of
//   mlp_mix_weight_gradient.cuh   the weights' gradients
//   mlp_mix_fused.cuh             both beside each other in one kernel
//   mlp_mix_backward.cu           which kernels, and what goes before (packing) and after (the sum of the splits)
//
// Between the two kinds of work stand, of each unit (64 channels of a sample), in 16 bits as core matrices, so that
// they are copied as they are:
//
//   entries   256 rows x 64 channels: dG (gate and up of 128 hidden units), or a = silu(gate) * up of 256
//   images    64 channels x positions: h, and dv, the gradient of v = h + z
//
// The writer of a unit goes through it place by place: an entry of dG and half an entry of a. The kernels that take
// turns have an entry and an image for each unit of a part of the batch; in mix_fused each writing warpgroup has a few
// slots, which it uses in turn, so that the entries go through the L2 cache alone.

#include "ops/mixing/cuda/mlp_mix.cuh"
#include "ops/mixing/cuda/mlp_mix.h"

namespace hrm::ops::cuda::mix {

constexpr int kWarpgroups = 2;
constexpr int kTileRows = kInnerMultiple;   // of an entry
constexpr int kPlaceUnits = kTileRows / 2;  // hidden units after which an entry of dG is written
constexpr int kPlaceChunks = kPlaceUnits / kChunk;
constexpr uint32_t kEntryBytes = kTileRows * kUnitChannels * 2;

// Slots of a warpgroup of mix_fused: entries of dG, of a, images. In all 31 + 10 MB on an H200, whose L2 cache of 50 MB
// they must not leave.
constexpr int kGradientSlots = 3;
constexpr int kValueSlots = 2;
constexpr int kImageSlots = 2;

// A unit's entries, in the order of the tiles: those of dG, then those of a.
__host__ __device__ constexpr int places_of(int inner) {
  return inner / kPlaceUnits;
}
__host__ __device__ constexpr int tiles_of(int inner) {
  return 3 * inner / kTileRows;
}

// A unit's h or dv.
template <class P>
constexpr uint32_t kImageBytes = kUnitChannels * 2 * P::kColumns;

// ---- Flags of mix_fused: of each entry, whether it is written, and whether it is read ----

// `stride`: units of a round, one of each writer.
__device__ inline int flag_of(int inner, int stride, int round, int tile, int writer) {
  return (round * tiles_of(inner) + tile) * stride + writer;
}

__device__ inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline void store_relaxed(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// Orders ordinary accesses to any memory and those of bulk copies.
__device__ inline void fence_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace hrm::ops::cuda::mix
