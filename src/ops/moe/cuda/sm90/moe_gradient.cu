// The gradient of the experts' weights: for each expert a product over its rows, of which only the device knows how
// many they are.

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/moe/cuda/sm90/moe_experts.h"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kStages = 3, kStageBytes = (128 + 256) * 128;
// On their way to memory: 64 rows x 128 columns of float32 of each warpgroup, in blocks of 64 rows x 128 bytes.
constexpr int kStagingBytes = 64 * 128 * 4;
constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * kStagingBytes + 2 * kStages * 8;

struct GradientShape {
  const int* starts;  // (experts + 1)
  int experts, m;
  int tiles_m, tiles_n;
  float* overwritten;  // the gradient (experts, m, n), or null: it is added to
  int n;
};

#if HRM_SM90A
// Zeros for the part of a tile that a warpgroup has, 64 rows: of an expert without rows.
__device__ void clear_tile(const GradientShape& shape, int expert, int row, int column, int thread) {
  const int columns = min(256, shape.n - column) / 4, rows = min(64, shape.m - row);
  float* const to = shape.overwritten + (int64_t{expert} * shape.m + row) * shape.n + column;
  for (int i = thread; i < rows * columns; i += 128) {
    *reinterpret_cast<float4*>(to + int64_t{i / columns} * shape.n + 4 * (i % columns)) = make_float4(0, 0, 0, 0);
  }
}
#endif

// Tiles of 128 x 256 of all experts in turn. Both operands stand with the rows that are summed over outside: 64 of them
// and 64 columns make a swizzled block. Two warpgroups multiply, 64 rows of the tile each, and hand the result to the
// TMA, which adds it to the gradient in the L2 cache, or overwrites that, while the next tile is multiplied. One tile
// alone has an element, so the order of the additions is always the same.
//
// map_grad: (experts * m, n) float32 as (32, experts * m, n / 32), in boxes of 32 x 64 x 4.
template <Input kInput>
__global__ void __launch_bounds__(384, 1)
    expert_gradient_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                           const __grid_constant__ CUtensorMap map_grad, const GradientShape shape) {
#if HRM_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* staging = ring + kStages * kStageBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(staging + 2 * kStagingBytes);
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
    const bool leader = threadIdx.x % 128 == 0;
    uint8_t* own = staging + consumer * kStagingBytes;
    RingPosition<kStages> at;
    for (int tile = first; tile < tiles; tile += blocks) {
      const int expert = tile / of_expert, m = tile % of_expert / shape.tiles_n, n = tile % shape.tiles_n;
      const int blocks_k = (shape.starts[expert + 1] - shape.starts[expert]) / 64;
      if (blocks_k == 0) {
        if (shape.overwritten != nullptr) {
          clear_tile(shape, expert, 128 * m + 64 * consumer, 256 * n, static_cast<int>(threadIdx.x) % 128);
        }
        continue;
      }
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
      const int row = 128 * m + 64 * consumer;
      if (row >= shape.m) continue;
      const int line = 16 * (warp % 4) + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (leader) tma_store_wait_read<0>();
        named_barrier(1 + consumer, 128);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint8_t* to = own + (line + 8 * i) * 128 + q % 2 * 8;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            const int chunk = (2 * (j % 4) + q / 2) ^ g, from = 4 * (16 * half + j) + 2 * i;
            *reinterpret_cast<float2*>(to + j / 4 * (64 * 128) + 16 * chunk) = make_float2(d[from], d[from + 1]);
          }
        }
        fence_async_shared();
        named_barrier(1 + consumer, 128);
        if (leader) {
          if (shape.overwritten != nullptr) {
            tma_store(&map_grad, own, 0, shape.m * expert + row, 8 * n + 4 * half);
          } else {
            tma_add(&map_grad, own, 0, shape.m * expert + row, 8 * n + 4 * half);
          }
          tma_store_commit();
        }
      }
    }
    if (leader) tma_store_wait_read<0>();
  }
#endif
}

template <Input kInput>
cudaError_t start_gradient(const ExpertGradient& p, cudaStream_t stream) {
  CUtensorMap map_a, map_b, map_grad;
  cudaError_t error = encode_column_chunks(map_a, p.a, p.tiles.rows, p.m, 64, 2);
  if (error == cudaSuccess) error = encode_column_chunks(map_b, p.b, p.tiles.rows, p.n, 64, 4);
  if (error == cudaSuccess) {
    error = encode_map(map_grad, p.grad, MapElement::float32, MapSwizzle::bytes128,
                       {{32, 0, 32}, {p.tiles.experts * p.m, 4 * p.n, 64}, {p.n / 32, 128, 4}});
  }
  if (error != cudaSuccess) return error;
  GradientShape shape{};
  shape.starts = p.tiles.starts;
  shape.experts = static_cast<int>(p.tiles.experts);
  shape.m = static_cast<int>(p.m);
  shape.n = static_cast<int>(p.n);
  shape.overwritten = p.overwrite ? p.grad : nullptr;
  shape.tiles_m = static_cast<int>((p.m + 127) / 128);
  shape.tiles_n = static_cast<int>((p.n + 255) / 256);
  const int tiles = shape.tiles_m * shape.tiles_n * shape.experts;
  return start(expert_gradient_kernel<kInput>, std::min(tiles, multiprocessors()), 384, kSharedBytes, 1, stream, map_a,
               map_b, map_grad, shape);
}

}  // namespace

bool fits(const ExpertGradient& p) {
  return is_hopper() && p.element != Element::f32 && reinterpret_cast<uintptr_t>(p.grad) % 16 == 0 &&
         p.tiles.rows > 0 && p.tiles.rows % 128 == 0 && p.tiles.rows <= INT32_MAX && p.m > 0 && p.m % 64 == 0 &&
         p.n > 0 && p.n % 64 == 0 && p.tiles.experts * p.m <= INT32_MAX &&
         (p.m + 127) / 128 * ((p.n + 255) / 256) * p.tiles.experts <= INT32_MAX;
}

cudaError_t launch(const ExpertGradient& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_gradient<Input::f16>(p, stream) : start_gradient<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
