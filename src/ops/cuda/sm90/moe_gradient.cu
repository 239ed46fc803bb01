// The gradient of the experts' weights: for each expert a product over its rows, of which only the device knows how
// many they are.

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/moe_experts.h"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kStages = 4, kStageBytes = (128 + 256) * 128;
constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * kStages * 8;

struct GradientShape {
  const int* starts;  // (experts + 1)
  float* grad;        // (experts, m, n)
  int experts, m, n;
  int tiles_m, tiles_n;
};

// Adds to two neighbouring floats; nothing comes back.
__device__ inline void add_pair(float* to, float first, float second) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
}

// Tiles of 128 x 256 of all experts in turn. Both operands stand with the rows that are summed over outside: 64 of them
// and 64 columns make a swizzled block. Two warpgroups multiply, 64 rows of the tile each, and add to the gradient.
template <Input kInput>
__global__ void __launch_bounds__(384, 1)
    expert_gradient_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                           const GradientShape shape) {
#if HRM_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint64_t* full = reinterpret_cast<uint64_t*>(ring + kStages * kStageBytes);
  uint64_t* empty = full + kStages;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int of_expert = shape.tiles_m * shape.tiles_n, tiles = of_expert * shape.experts;
  const auto first = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier();

  if (warp >= 8) {
    registers_decrease<24>();
    if (warp == 8 && lane == 0) {
      tma_prefetch_map(&map_a);
      tma_prefetch_map(&map_b);
      RingPosition<kStages> at;
      for (int tile = first; tile < tiles; tile += blocks) {
        const int expert = tile / of_expert, m = tile % of_expert / shape.tiles_n, n = tile % shape.tiles_n;
        const int end = shape.starts[expert + 1];
        for (int row = shape.starts[expert]; row < end; row += 64) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          uint8_t* a = ring + at.stage * kStageBytes;
          barrier_arrive_expect(&full[at.stage], kStageBytes);
          tma_load(a, &map_a, &full[at.stage], 0, row, 2 * m);
          tma_load(a + 128 * 128, &map_b, &full[at.stage], 0, row, 4 * n);
          at.advance();
        }
      }
    }
    __syncwarp();
  } else {
    registers_increase<240>();
    const int consumer = warp / 4, g = lane / 4, q = lane % 4;
    RingPosition<kStages> at;
    for (int tile = first; tile < tiles; tile += blocks) {
      const int expert = tile / of_expert, m = tile % of_expert / shape.tiles_n, n = tile % shape.tiles_n;
      const int blocks_k = (shape.starts[expert + 1] - shape.starts[expert]) / 64;
      if (blocks_k == 0) continue;
      float d[128];
      int previous = 0;
      for (int k = 0; k < blocks_k; ++k) {
        barrier_wait(&full[at.stage], at.parity);
        const uint8_t* stage = ring + at.stage * kStageBytes;
        const uint64_t a = descriptor_mn_major(stage + 64 * 128 * consumer, 64 * 128);
        const uint64_t b = descriptor_mn_major(stage + 128 * 128, 64 * 128);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Mma<256, kInput>::template shared<Major::mn, Major::mn>(d, a + 128 * step, b + 128 * step, k > 0 || step > 0);
        }
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          if (lane == 0) barrier_arrive(&empty[previous]);
        }
        previous = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      registers_fence(d);
      if (lane == 0) barrier_arrive(&empty[previous]);
      const int row = 128 * m + 64 * consumer + 16 * (warp % 4) + g, column = 256 * n + 2 * q;
      float* to = shape.grad + (int64_t{expert} * shape.m + row) * shape.n + column;
      const int64_t next_eight = int64_t{8} * shape.n;
      // Added by the L2 cache, while the next tile is multiplied. One thread alone adds to an element, so the order of
      // the additions is always the same.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + 8 * i >= shape.m) continue;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          if (column + 8 * j < shape.n) add_pair(to + i * next_eight + 8 * j, d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
        }
      }
    }
  }
#endif
}

template <Input kInput>
cudaError_t start_gradient(const ExpertGradient& p, cudaStream_t stream) {
  CUtensorMap map_a, map_b;
  cudaError_t error = encode_column_chunks(map_a, p.a, p.tiles.rows, p.m, 64, 2);
  if (error == cudaSuccess) error = encode_column_chunks(map_b, p.b, p.tiles.rows, p.n, 64, 4);
  if (error != cudaSuccess) return error;
  GradientShape shape{};
  shape.starts = p.tiles.starts;
  shape.grad = p.grad;
  shape.experts = static_cast<int>(p.tiles.experts);
  shape.m = static_cast<int>(p.m);
  shape.n = static_cast<int>(p.n);
  shape.tiles_m = static_cast<int>((p.m + 127) / 128);
  shape.tiles_n = static_cast<int>((p.n + 255) / 256);
  const int tiles = shape.tiles_m * shape.tiles_n * shape.experts;
  return start(expert_gradient_kernel<kInput>, std::min(tiles, multiprocessors()), 384, kSharedBytes, 1, stream, map_a,
               map_b, shape);
}

}  // namespace

bool fits(const ExpertGradient& p) {
  return is_hopper() && p.element != Element::f32 && p.tiles.rows > 0 && p.tiles.rows % 128 == 0 &&
         p.tiles.rows <= INT32_MAX && p.m > 0 && p.m % 64 == 0 && p.n > 0 && p.n % 64 == 0 &&
         (p.m + 127) / 128 * ((p.n + 255) / 256) * p.tiles.experts <= INT32_MAX;
}

cudaError_t launch(const ExpertGradient& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_gradient<Input::f16>(p, stream) : start_gradient<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
