#pragma once
// The gradients of gate and up where that of act = silu(gate) * up is A (M, K) * W (K, F), in tiles of 128 rows x 256
// columns, of one W or of one for each 128 rows (tile_groups.h): what follows the product is done by the warps in whose
// registers it is. (Three warps beside the product, as tile_gemm.cuh has them, have no room for the gates and ups that
// must be under way to keep memory busy.)
//
// Two warpgroups of a block, 64 rows each, for as many tiles as the block gets; one thread of a further warp loads A
// and W. A warp has 16 rows of a tile, in eight units of 8 rows x 64 columns, one after the other: the TMA brings the
// unit's gates and ups, the warp writes their gradients over them, and the TMA takes these away. kUnits units of each
// warp are in shared memory, so that most of a tile's are there before its product is.
//
// A start of the second warpgroup some stages after the first, as in swiglu_registers.cuh, costs 1 to 3 % here: the
// ring is too short for both it and the loads ahead. Nor do two blocks gain that share what they load of W (6 %
// slower).

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/tile_draws.cuh"
#include "ops/cuda/sm90/tile_groups.h"
#include "ops/cuda/sm90/tile_order.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct SwigluGradient {
  int64_t rows;
  int blocks_k;       // 64 of K each
  int slices;         // 256 columns each
  TileGroups groups;  // with kGrouped alone
  int band;           // see place_in_bands()
  uint32_t* draws;    // see next_tile()
};

constexpr int kSwigluGradientThreads = 288;
constexpr int kSwigluGradientStageBytes = (128 + 256) * 128;
constexpr int kSwigluUnitBytes = 2 * 8 * 128;  // gates, then ups; 8 rows of 128 bytes with chunk c of row r at c ^ r

constexpr int swiglu_gradient_shared_bytes(int stages, int units) {
  return 1024 + stages * kSwigluGradientStageBytes + 8 * units * kSwigluUnitBytes + (2 * stages + 8 * units) * 8 +
         static_cast<int>(sizeof(TileDraws));
}

// Four 8 x 8 matrices of 16-bit elements as accumulators are held, r[i] of matrix i; lane l gives the address of row l
// % 8 of matrix l / 8, 16 bytes.
__device__ inline void load_matrices(uint32_t* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Of two neighbouring elements, from the gradient of silu(gate) * up.
template <Input kInput>
__device__ inline void differentiate_swiglu(uint32_t grad, uint32_t gate, uint32_t up, uint32_t& grad_gate,
                                            uint32_t& grad_up) {
  const float2 g = widen_pair<kInput>(grad), x = widen_pair<kInput>(gate), u = widen_pair<kInput>(up);
  const float2 s = {sigmoid(x.x), sigmoid(x.y)};
  const float2 gated = {x.x * s.x, x.y * s.y};
  grad_gate =
      round_pair<kInput>(g.x * u.x * s.x * (1.0f + x.x * (1.0f - s.x)), g.y * u.y * s.y * (1.0f + x.y * (1.0f - s.y)));
  grad_up = round_pair<kInput>(g.x * gated.x, g.y * gated.y);
}

// map_gate_up and map_grad: (rows, 2, F) in boxes of 8 x 2 x 64.
template <Input kInput, int kStages, int kUnits, bool kGrouped>
__global__ void __launch_bounds__(kSwigluGradientThreads, 1)
    swiglu_gradient_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                           const __grid_constant__ CUtensorMap map_gate_up,
                           const __grid_constant__ CUtensorMap map_grad, const SwigluGradient p) {
#if HRM_SM90A
  static_assert(kStages >= 2 && kUnits >= 2 && kUnits <= 8 && TileDraws::reach(kStages));
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint8_t* all_units = ring + kStages * kSwigluGradientStageBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(all_units + 8 * kUnits * kSwigluUnitBytes);
  uint64_t* empty = full + kStages;
  uint64_t* all_arrived = empty + kStages;  // [warp][kUnits]
  auto* const draws = reinterpret_cast<TileDraws*>(all_arrived + 8 * kUnits);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto blocks = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  int row_tiles = static_cast<int>((p.rows + 127) / 128), tiles = row_tiles * p.slices;
  const auto place_of = [&](int tile) { return place_in_bands(tile, p.slices, p.band, row_tiles); };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8);
    }
    for (int i = 0; i < 8 * kUnits; ++i) barrier_init(&all_arrived[i], 1);
    draws->init();
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier();
  if constexpr (kGrouped) {
    row_tiles = *p.groups.ends / 128;
    tiles = row_tiles * p.slices;
  }

  if (warp == 8) {
    if (lane == 0) {
      tma_prefetch_map(&map_a);
      tma_prefetch_map(&map_w);
      RingPosition<kStages> at;
      for (int turn = 0, tile = first, next = 0; tile < tiles; tile = next) {
        next = next_tile(p.draws, tile, blocks);
        const TilePlace to = place_of(tile);
        int weight_row = 0;
        if constexpr (kGrouped) weight_row = p.groups.tile_experts[to.row] * p.groups.weight_rows;
        for (int k = 0; k < p.blocks_k; ++k) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          uint64_t* barrier = &full[at.stage];
          barrier_arrive_expect(barrier, kSwigluGradientStageBytes);
          uint8_t* a = ring + at.stage * kSwigluGradientStageBytes;
          tma_load(a, &map_a, barrier, 64 * k, to.row * 128);
          tma_load(a + 128 * 128, &map_w, barrier, 0, weight_row + 64 * k, 4 * to.slice);
          at.advance();
        }
        draws->put(++turn, next);
      }
    }
    return;
  }

  const int consumer = warp / 4;
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(&empty[stage]);
  };
  uint8_t* const units = all_units + warp * kUnits * kSwigluUnitBytes;
  uint64_t* const arrived = all_arrived + warp * kUnits;
  RingPosition<kUnits> unit, fill;  // to be worked on next, to be asked for next
  // By one lane: unit `index` of a tile into the place of the oldest one.
  const auto ask = [&](int tile, int index) {
    const TilePlace of = place_of(tile);
    barrier_arrive_expect(&arrived[fill.stage], kSwigluUnitBytes);
    tma_load(units + fill.stage * kSwigluUnitBytes, &map_gate_up, &arrived[fill.stage],
             of.slice * 256 + 64 * (index % 4), of.row * 128 + 16 * warp + 8 * (index / 4), 0);
    fill.advance();
  };
  if (lane == 0 && first < tiles) {
    for (int i = 0; i < kUnits; ++i) ask(first, i);
  }
  __syncwarp();

  RingPosition<kStages> at;
  for (int turn = 0, tile = first, following = 0; tile < tiles; tile = following) {
    float d[128];
    int previous = 0;
    for (int k = 0; k < p.blocks_k; ++k) {
      barrier_wait(&full[at.stage], at.parity);
      const uint8_t* stage = ring + at.stage * kSwigluGradientStageBytes;
      const uint64_t a = descriptor_k_major(stage + 64 * 128 * consumer);
      const uint64_t b = descriptor_mn_major(stage + 128 * 128, 64 * 128);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<256, kInput>::template shared<Major::k, Major::mn>(d, a + 2 * step, b + 128 * step, k > 0 || step > 0);
      }
      wgmma_commit();
      if (k == 0 && turn > 0) {
        // The place of the last tile's last unit.
        if (lane == 0) {
          tma_store_wait_read<0>();
          ask(tile, kUnits - 1);
        }
        __syncwarp();
      }
      if (k > 0) {
        wgmma_wait<1>();
        release(previous);
      }
      previous = at.stage;
      at.advance();
    }
    wgmma_wait<0>();
    registers_fence(d);
    release(previous);

    following = draws->get(++turn);
    const TilePlace here = place_of(tile);
    const int row = here.row * 128 + 16 * warp, column = here.slice * 256;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const int half = u / 4, block = u % 4;
      uint8_t* const place = units + unit.stage * kSwigluUnitBytes;
      barrier_wait(&arrived[unit.stage], unit.parity);
      uint8_t* const line = place + lane % 8 * 128;
      uint32_t gate[8], up[8];
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const uint8_t* const chunk = line + 16 * ((j + lane / 8) ^ (lane % 8));
        load_matrices(gate + j, chunk);
        load_matrices(up + j, chunk + 8 * 128);
      }
      __syncwarp();  // all have read before any writes
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int of = 4 * (8 * block + j) + 2 * half;
        differentiate_swiglu<kInput>(round_pair<kInput>(d[of], d[of + 1]), gate[j], up[j], gate[j], up[j]);
      }
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        uint8_t* const chunk = line + 16 * ((j + lane / 8) ^ (lane % 8));
        store_matrices(chunk, gate[j], gate[j + 1], gate[j + 2], gate[j + 3]);
        store_matrices(chunk + 8 * 128, up[j], up[j + 1], up[j + 2], up[j + 3]);
      }
      fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        tma_store(&map_grad, place, column + 64 * block, row + 8 * half, 0);
        tma_store_commit();
        // The place of the unit before, which the TMA has read by now, for the one kUnits after it.
        if (u > 0) {
          const int next = u - 1 + kUnits;
          tma_store_wait_read<1>();
          if (next < 8) {
            ask(tile, next);
          } else if (following < tiles) {
            ask(following, next - 8);
          }
        }
      }
      __syncwarp();
      unit.advance();
    }
  }
  if (lane == 0) tma_store_wait_read<0>();
#endif
}

// Queues the kernel. With kGrouped weight_down is `experts` weights (K, F), one below the other.
template <Input kInput, int kStages = 3, int kUnits = 5, bool kGrouped = false, class Params>
cudaError_t start_swiglu_gradient(const Params& p, cudaStream_t stream, const TileGroups& groups = {},
                                  int64_t experts = 1, uint32_t* draws = nullptr) {
  CUtensorMap map_a, map_w, map_gate_up, map_grad;
  const auto encode_units = [&](CUtensorMap& map, const void* base) {
    return encode_map(map, base, MapElement::bits16, MapSwizzle::bytes128,
                      {{p.width, 0, 64}, {p.rows, 4 * p.width, 8}, {2, 2 * p.width, 2}});
  };
  cudaError_t error = encode_rows(map_a, p.grad_out, p.rows, p.inner, 128);
  if (error == cudaSuccess) error = encode_column_chunks(map_w, p.weight_down, experts * p.inner, p.width, 64, 4);
  if (error == cudaSuccess) error = encode_units(map_gate_up, p.gate_up);
  if (error == cudaSuccess) error = encode_units(map_grad, p.grad_gate_up);
  if (error != cudaSuccess) return error;
  SwigluGradient params{};
  params.rows = p.rows;
  params.blocks_k = static_cast<int>((p.inner + 63) / 64);
  params.slices = static_cast<int>(p.width / 256);
  params.band = tile_band(params.slices);
  params.groups = groups;
  params.draws = draws;
  const int64_t tiles = (p.rows + 127) / 128 * params.slices;
  const auto blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors()));
  return start(swiglu_gradient_kernel<kInput, kStages, kUnits, kGrouped>, blocks, kSwigluGradientThreads,
               swiglu_gradient_shared_bytes(kStages, kUnits), 1, stream, map_a, map_w, map_gate_up, map_grad, params);
}

}  // namespace hrm::ops::cuda::sm90
