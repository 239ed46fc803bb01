#pragma once
// act = silu(A * W_gate^T) * (A * W_up^T), A (M, K), W = [W_gate; W_up] (2F, K), in tiles of 128 rows x 128 outputs:
// everything after the products is done in the registers that hold them. (tile_gemm.cuh leaves it to three warps, too
// few where the product is short, as that of e4m3 operands is.) Tiles come last first (launch.cuh says why).
//
// Two warpgroups of a block, 64 rows each, multiply and then compute act, for as many tiles as the block gets; one
// thread of a further warp loads. Nothing but the ring of stages, and which tiles come, is in shared memory.
//
// The rows of W are loaded in such an order that a thread's accumulators are gates and ups of the same outputs, and
// these are whole runs of kRun: column 8 * (kRun * s + i) + 2 * q + e of the 256 is the gate (e = 0) or the up (e = 1)
// of output 4 * kRun * s + kRun * q + i. (q, of 4, is the thread in its quad, see wgmma; i < kRun, s < 32 / kRun.) Runs
// of 16 e4m3 or 8 16-bit outputs are stored as 16 bytes, and the quad's are 64 bytes in a row. As a tensor map over W
// that is five dimensions: k, e (2, stride F rows), q (4, stride kRun rows), i (kRun, stride 1 row) and
// s (F / (4 * kRun), stride 4 * kRun rows). Of several weights one below the other, s runs on: weight number n begins
// at s = n * 2F / (4 * kRun).
//
// The second warpgroup begins a tile after the first has begun its kLag-th stage, so that one of them multiplies while
// the other computes act. Nobody waits in a circle: the stages that the first needs for that, kLag <= kStages, are
// loaded once both have ended the tile before. Later on, whoever is behind waits only for a stage whose place both have
// released, as it has kept no more than the one before.

#include <algorithm>

#include "ops/cuda/early.cuh"
#include "ops/cuda/sm90/elements.cuh"
#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/tile_draws.cuh"
#include "ops/cuda/sm90/tile_groups.h"
#include "ops/cuda/sm90/tile_order.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace hrm::ops::cuda::sm90 {

struct SwigluRegisters {
  void* act;      // (rows, width): e4m3 if the operands are, otherwise of their type
  void* gate_up;  // (rows, 2 width) of kRounded, with kKeeps
  int64_t rows;
  int64_t width;
  int blocks_k;       // 128 bytes of K each; what is loaded beyond K is zero
  int slices;         // 128 outputs each
  int band;           // see place_in_bands()
  TileGroups groups;  // with kGrouped alone: W is several weights [W_gate; W_up], one below the other
  uint32_t* draws;    // see next_tile()
  // e4m3 operands only; slots are {scale, 1 / scale, amax, 0}. With kKeeps, act_slot is wide and counts.
  const float* x_slot;
  const float* weight_slot;
  float* act_slot;
};

constexpr int kSwigluThreads = 288;
constexpr int kSwigluStageBytes = (128 + 256) * 128;

constexpr int swiglu_registers_shared_bytes(int stages) {
  return 1024 + stages * kSwigluStageBytes + (2 * stages + 1) * 8 + static_cast<int>(sizeof(TileDraws));
}

// Outputs that a thread has in a row of each other.
template <Input kOperand>
constexpr int kSwigluRun = kOperand == Input::e4m3 ? 16 : 8;

// x * sigmoid(x) by one special-function operation, as x / 2 * (1 + tanh(x / 2)). The approximation is off by at most
// 2^-11 of the tanh, which makes 2^-12 of x here: for positive x, 1/128 of the distance to the next e4m3 number and
// less. For negative x the result may be smaller than that error, at most 2^-12 |x|; but then it is small beside the
// tensor's largest, which e4m3 and the 14 bits of its products resolve no better.
__device__ inline float silu_by_tanh(float x) {
  const float half = 0.5f * x;
  float tanh_half;
  asm("tanh.approx.f32 %0, %1;" : "=f"(tanh_half) : "f"(half));
  return fmaf(half, tanh_half, half);
}

// act of two outputs, from their products rounded to kRounded; silu is rounded too, and so is the result. Of 16-bit
// operands: the bits of ops/linear/cuda/swiglu.cu.
template <Input kRounded, bool kByTanh>
__device__ inline uint32_t gated_pair(uint32_t gate, uint32_t up) {
  const float2 x = widen_pair<kRounded>(gate);
  const float2 y = kByTanh ? make_float2(silu_by_tanh(x.x), silu_by_tanh(x.y)) : make_float2(silu(x.x), silu(x.y));
  return multiply_pairs<kRounded>(round_pair<kRounded>(y.x, y.y), up);
}

// kOperand: type of A and W. kRounded: bf16 or f16, that to which products are rounded. kGrouped: see TileGroups.
// kKeeps, of e4m3 operands: the products are written, too, and silu has the bits of ops/linear/cuda/swiglu.cu.
template <Input kOperand, Input kRounded, int kStages, int kLag, bool kGrouped, bool kKeeps>
__global__ void __launch_bounds__(kSwigluThreads, 1)
    swiglu_registers_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                            const SwigluRegisters p) {
#if HRM_SM90A
  constexpr bool k8 = kOperand == Input::e4m3;
  static_assert(k8 || (kOperand == kRounded && !kKeeps));
  static_assert(kStages >= 2 && kLag >= 0 && kLag <= kStages && TileDraws::reach(kStages));
  constexpr int kRun = kSwigluRun<kOperand>, kRuns = 32 / kRun;
  constexpr int kBlockK = k8 ? 128 : 64;
  extern __shared__ uint8_t shared_raw[];
  uint8_t* ring = shared_raw + (-shared_address(shared_raw) & 1023);
  uint64_t* full = reinterpret_cast<uint64_t*>(ring + kStages * kSwigluStageBytes);
  uint64_t* empty = full + kStages;
  uint64_t* begun = empty + kStages;  // the first warpgroup is kLag stages into the tile
  auto* const draws = reinterpret_cast<TileDraws*>(begun + 1);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto blocks = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  int row_tiles = static_cast<int>((p.rows + 127) / 128), tiles = row_tiles * p.slices;
  const auto place_of = [&](int index) { return place_in_bands(tiles - 1 - index, p.slices, p.band, row_tiles); };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 8);
    }
    barrier_init(begun, 1);
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
      for (int turn = 0, index = first, next = 0; index < tiles; index = next) {
        next = next_tile(p.draws, index, blocks);
        const TilePlace tile = place_of(index);
        const int row = tile.row * 128;
        int run = tile.slice * kRuns;
        if constexpr (kGrouped) {
          run += p.groups.tile_experts[tile.row] * (p.groups.weight_rows / (4 * kRun));
        }
        for (int k = 0; k < p.blocks_k; ++k) {
          barrier_wait(&empty[at.stage], at.parity ^ 1);
          uint64_t* barrier = &full[at.stage];
          barrier_arrive_expect(barrier, kSwigluStageBytes);
          uint8_t* a = ring + at.stage * kSwigluStageBytes;
          tma_load(a, &map_a, barrier, kBlockK * k, row);
          tma_load(a + 128 * 128, &map_w, barrier, kBlockK * k, 0, 0, 0, run);
          at.advance();
        }
        draws->put(++turn, next);
      }
    }
    return;
  }

  const int consumer = warp / 4, g = lane / 4, q = lane % 4;
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(&empty[stage]);
  };
  // A tile of fewer stages than the ring has could be begun before the second warpgroup saw that the last one was:
  // parities tell only two neighbouring phases apart.
  const bool lags = kLag > 0 && p.blocks_k >= kStages;
  float unscale = 1, act_scale = 0;
  if constexpr (k8) {
    unscale = p.x_slot[1] * p.weight_slot[1];
    act_scale = p.act_slot[0];
  }
  uint32_t largest = 0;  // see larger_sizes()
  [[maybe_unused]] uint32_t clamped = 0;
  RingPosition<kStages> at;
  uint32_t begun_parity = 0;
  for (int turn = 0, index = first; index < tiles; index = draws->get(++turn)) {
    if (lags && consumer == 1) {
      barrier_wait(begun, begun_parity);
      begun_parity ^= 1;
    }
    float d[128];
    int previous = 0;
    for (int k = 0; k < p.blocks_k; ++k) {
      barrier_wait(&full[at.stage], at.parity);
      const uint8_t* stage = ring + at.stage * kSwigluStageBytes;
      const uint64_t a = descriptor_k_major(stage + 64 * 128 * consumer);
      const uint64_t b = descriptor_k_major(stage + 128 * 128);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Mma<256, kOperand>::shared(d, a + 2 * step, b + 2 * step, k > 0 || step > 0);
      }
      wgmma_commit();
      if (lags && k == kLag - 1 && threadIdx.x == 0) barrier_arrive(begun);
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

    const TilePlace tile = place_of(index);
    const int64_t first_row = int64_t{tile.row} * 128 + 16 * warp + g;
    const int64_t column = int64_t{tile.slice} * 128 + kRun * q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + 8 * half;
      const bool exists = row < p.rows;
      uint8_t* to = static_cast<uint8_t*>(p.act) + (row * p.width + column) * (k8 ? 1 : 2);
      uint8_t* const kept = static_cast<uint8_t*>(p.gate_up) + (row * 2 * p.width + column) * 2;
#pragma unroll
      for (int s = 0; s < kRuns; ++s) {
        uint32_t pairs[kRun / 2];
        [[maybe_unused]] uint32_t gates[4], ups[4];
#pragma unroll
        for (int i = 0; i < kRun; i += 2) {
          const int of = 4 * (kRun * s + i) + 2 * half;
          uint32_t gate, up;
          if constexpr (k8) {
            gate = round_pair<kRounded>(d[of] * unscale, d[of + 4] * unscale);
            up = round_pair<kRounded>(d[of + 1] * unscale, d[of + 5] * unscale);
          } else {
            gate = round_pair<kRounded>(d[of], d[of + 4]);
            up = round_pair<kRounded>(d[of + 1], d[of + 5]);
          }
          pairs[i / 2] = gated_pair < kRounded, k8 && !kKeeps > (gate, up);
          if constexpr (kKeeps) {
            gates[i / 2 % 4] = gate;
            ups[i / 2 % 4] = up;
            if (i % 8 == 6 && exists) {
              uint8_t* const at_run = kept + 128 * s + 2 * (i - 6);
              store_16(at_run, {gates[0], gates[1], gates[2], gates[3]});
              store_16(at_run + 2 * p.width, {ups[0], ups[1], ups[2], ups[3]});
            }
          }
        }
        uint4 out;
        if constexpr (k8) {
          uint32_t sizes = 0;
#pragma unroll
          for (const uint32_t pair : pairs) sizes = larger_sizes(sizes, pair);
          largest = larger_sizes(largest, exists ? sizes : 0);
          if constexpr (kKeeps) clamped += clamped_pairs<kRounded>(pairs, largest, act_scale, exists);
          out = {quantize_pairs<kRounded>(pairs[0], pairs[1], act_scale),
                 quantize_pairs<kRounded>(pairs[2], pairs[3], act_scale),
                 quantize_pairs<kRounded>(pairs[4], pairs[5], act_scale),
                 quantize_pairs<kRounded>(pairs[6], pairs[7], act_scale)};
        } else {
          out = {pairs[0], pairs[1], pairs[2], pairs[3]};
        }
        if (exists) store_16(to + 64 * s, out);
      }
    }
    __syncwarp();
  }
  if constexpr (k8) raise_amax_of_pairs<kRounded>(p.act_slot, largest);
  if constexpr (kKeeps) {
    if (first == 0 && threadIdx.x == 0) count_rows(p.act_slot, p.rows);
    if (clamped != 0) count_clamped(p.act_slot, clamped);
  }
#endif
}

// Queues the kernel. width a multiple of 128; inner of 16 bytes. Slots only for e4m3. `experts` weights with kGrouped.
template <Input kOperand, Input kRounded, int kStages = 4, int kLag = kOperand == Input::e4m3 ? 3 : 2,
          bool kGrouped = false, bool kKeeps = false, class Params>
cudaError_t start_swiglu_registers(const Params& p, const float* x_slot, const float* weight_slot, float* act_slot,
                                   cudaStream_t stream, const TileGroups& groups = {}, int64_t experts = 1,
                                   void* gate_up = nullptr, uint32_t* draws = nullptr) {
  constexpr MapElement kElement = kOperand == Input::e4m3 ? MapElement::bits8 : MapElement::bits16;
  constexpr int kBytes = bytes_of(kElement), kBlockK = 128 / kBytes, kRun = kSwigluRun<kOperand>;
  const int64_t stride = kBytes * p.inner;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128, kElement);
  if (error == cudaSuccess) {
    error = encode_map(map_w, p.weight, kElement, MapSwizzle::bytes128,
                       {{p.inner, 0, kBlockK},
                        {2, p.width * stride, 2},
                        {4, kRun * stride, 4},
                        {kRun, stride, kRun},
                        {(2 * experts - 1) * (p.width / (4 * kRun)), 4 * kRun * stride, 32 / kRun}});
  }
  if (error != cudaSuccess) return error;
  SwigluRegisters params{};
  params.act = p.act;
  params.gate_up = gate_up;
  params.rows = p.rows;
  params.width = p.width;
  params.blocks_k = static_cast<int>((p.inner + kBlockK - 1) / kBlockK);
  params.slices = static_cast<int>(p.width / 128);
  params.band = tile_band(params.slices);
  params.x_slot = x_slot;
  params.weight_slot = weight_slot;
  params.act_slot = act_slot;
  params.groups = groups;
  params.draws = draws;
  const int64_t tiles = (p.rows + 127) / 128 * params.slices;
  const auto blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors()));
  return start(swiglu_registers_kernel<kOperand, kRounded, kStages, kLag, kGrouped, kKeeps>, blocks, kSwigluThreads,
               swiglu_registers_shared_bytes(kStages), 1, stream, map_a, map_w, params);
}

}  // namespace hrm::ops::cuda::sm90
