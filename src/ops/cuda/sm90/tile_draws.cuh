#pragma once
// Which tiles a block of a persistent kernel works on: every blocks-th one, or those that it draws from a counter.
//
// A kernel with a block for each multiprocessor may start while another one, NCCL's above all, holds some of them. The
// blocks that wait for these begin late. With lists of tiles that are fixed before, the kernel then takes as much
// longer as they waited; where tiles are drawn, the other blocks do their work. In a step of ZeRO-3 on two H200s the
// gradient of SwiGLU took 1,163 us beside exchanges instead of 748 (docs/measurements/log.md).

#include "ops/cuda/sm90/primitives.cuh"

namespace hrm::ops::cuda::sm90 {

// By one thread: the tile after `tile`. draws: how often the blocks of this launch have drawn, 0 at its start; null:
// nothing is drawn.
__device__ inline int next_tile(uint32_t* draws, int tile, int blocks) {
  return draws == nullptr ? tile + blocks : blocks + static_cast<int>(atomicAdd(draws, 1u));
}

// In shared memory: the thread that loads tells the other warps which tile comes in which turn, but for the first one.
// Nobody is kPlaces turns behind it.
struct TileDraws {
  static constexpr int kPlaces = 8;
  // Warps that multiply are at most a ring of stages behind the thread that loads, those of an epilogue two tiles more.
  __host__ __device__ static constexpr bool reach(int stages) { return stages + 2 < kPlaces; }
  uint64_t known[kPlaces];
  int tile[kPlaces];

  // By one thread; barrier_init_fence() follows.
  __device__ void init() {
    for (uint64_t& barrier : known) barrier_init(&barrier, 1);
  }
  // turn: from 1.
  __device__ void put(int turn, int drawn) {
    const int place = (turn - 1) % kPlaces;
    tile[place] = drawn;
    barrier_arrive(&known[place]);
  }
  __device__ int get(int turn) {
    const int place = (turn - 1) % kPlaces;
    barrier_wait(&known[place], (turn - 1) / kPlaces & 1);
    return tile[place];
  }
};

}  // namespace hrm::ops::cuda::sm90
