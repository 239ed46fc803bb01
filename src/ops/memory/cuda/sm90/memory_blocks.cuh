#pragma once
// Pre-norm blocks (attention without a mask, SwiGLU) over memories of up to 64 vectors, all steps in one kernel.
//
// A cluster has 64 rows, as many whole memories as fit, and a block for each head, its rank. The rows' vectors never
// leave the cluster: rank r keeps columns 64 * r to 64 * r + 63 of the residual stream in registers, and what all need,
// a chunk of 64 columns each, goes from shared memory to shared memory. The weights that a rank needs come from the L2
// cache in tiles of up to 64 rows x 64 of K, through a ring for each of two warpgroups. The threads that fill the rings
// wait for nobody else, so that weights travel while the ranks wait for each other.
//
//   qkv      x (64, D), gathered, * the head's 192 rows -> q, k, v of the head, and its attention
//   o        mixed (64, D), gathered, * 64 rows -> the rank's own columns
//   gate_up  x (64, D), gathered, * 192 rows each -> 192 columns of act
//   down     act (64, 192) * 192 columns -> parts of the sums for all columns, sent to their owners, which add them in
//            the order of ranks. Parts are rounded to the element type, as the sum will be.
//
// RMSNorm: the owner sends h * weight, rounded, and its share of each row's sum of squares; the factor of the row comes
// after the product, in float32.
//
// The left operand of all products is in registers, since the bandwidth of shared memory limits them: each tile of
// weights is written and read once, x once by each warpgroup.
//
// Shared memory: x0 holds h * weight of all ranks, x1 holds mixed, and later the parts. Nobody asks whether the others'
// memory is free to be written, as what has arrived from them tells it: all of mixed that they are through x0 (qkv),
// all of x0 (gate_up) that they are through x1 (o), all parts that they are through x0, all of x0 (qkv) that they have
// added the parts.

#include "ops/cuda/early.cuh"
#include "ops/memory/cuda/sm90/memory_blocks_attention.cuh"
#include "ops/memory/cuda/sm90/memory_blocks_mlp.cuh"

namespace hrm::ops::cuda::sm90 {

template <Input kInput, int kHeads>
__global__ void __launch_bounds__(kMemoryThreads, 1)
    memory_blocks_kernel(const __grid_constant__ MemoryMaps maps, const __grid_constant__ MemoryBlocks p) {
#if HRM_SM90A
  using Shape = MemoryShape<kHeads>;
  using Worker = MemoryWorker<kInput, Shape>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) Worker::init_barriers(shared);
  cluster_sync();
  wait_for_earlier();
  if (warp >= 8) {
    registers_decrease<40>();
    const int side = warp - 8;
    if (side < 2 && lane == 0) {
      uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers) + Shape::kStages * side;
      load_memory_weights<Shape>(maps, p, shared + Shape::kRing + Shape::kStages * Shape::kTile * side, full,
                                 full + 2 * Shape::kStages, rank, side);
    }
    __syncwarp();
  } else {
    registers_increase<232>();
    Worker(p, shared, rank, warp).run();
  }
  // Nobody leaves while others may still write to it.
  cluster_sync();
#endif
}

template <Input kInput, int kHeads>
cudaError_t start_memory_blocks(const MemoryBlocks& p, cudaStream_t stream) {
  using Shape = MemoryShape<kHeads>;
  MemoryMaps maps;
  for (int i = 0; i < p.count; ++i) {
    const MemoryBlock& block = p.blocks[i];
    const auto encode = [](CUtensorMap& map, const void* weight, int64_t rows, int64_t inner) {
      return encode_rows(map, weight, rows, inner, 32);
    };
    cudaError_t error = encode(maps.blocks[i].qkv, block.qkv, 3 * Shape::kWidth, Shape::kWidth);
    if (error == cudaSuccess) error = encode(maps.blocks[i].o, block.o, Shape::kWidth, Shape::kWidth);
    if (error == cudaSuccess) error = encode(maps.blocks[i].gate_up, block.gate_up, 2 * Shape::kInner, Shape::kWidth);
    if (error == cudaSuccess) error = encode(maps.blocks[i].down, block.down, Shape::kWidth, Shape::kInner);
    if (error != cudaSuccess) return error;
  }
  const int64_t memories = 64 / p.length, clusters = (p.batch + memories - 1) / memories;
  return start(memory_blocks_kernel<kInput, kHeads>, static_cast<int>(clusters * Shape::kRanks), kMemoryThreads,
               Shape::kBytes, Shape::kRanks, stream, maps, p);
}

}  // namespace hrm::ops::cuda::sm90
