// The MLP over positions in one kernel. Legend:
//   d: channel (width), l: position (length), f: hidden unit (inner)
//
// A unit of work is 64 channels of one sample, owned by a warpgroup whose wgmma tiles have the channels as rows:
//
//   G (64 d x 64)     = h^T (64 d x l) @ packed gate_up chunk (l x 32 gate and 32 up units)
//   a (64 d x 32 f)   = silu(gate) * up                             in registers
//   z (64 d x l)     += a @ packed down chunk (32 f x l)            a is the register operand: no transpose anywhere
//
// so h^T stays in registers for all chunks, is also the residual, and the norm over l is a sum along a row of the tile.
// h enters and y leaves through a transposing 16 x l tile of each warp. Nothing but h, y and rstd touches memory.
//
// The weights pass by in chunks of 32 hidden units, packed beforehand into the order in which they will lie in shared
// memory (core matrices, positions padded by zeros), so that one bulk copy brings a chunk; the warpgroups of a block
// share it, and the blocks of a cluster share each load.
#include <type_traits>

#include "ops/cuda/sm90/tensor_map.h"
#include "ops/mixing/cuda/mlp_mix.cuh"
#include "ops/mixing/cuda/mlp_mix.h"

namespace hrm::ops::cuda {
namespace {

using namespace mix;  // NOLINT

// ---- Packing ----

// A thread writes one row of a core matrix, 16 bytes.
template <Input kInput>
__global__ void pack_weights(PackParams p) {
  wait_for_earlier();
  const int gate_up_rows = p.steps * 2 * 2 * kChunk;  // (step, half of 8 positions, column)
  const int rows = gate_up_rows + kChunk / 8 * p.columns;
  const int chunk = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  Pack<uint16_t, 8> out;
  if (row < gate_up_rows) {
    out = pack_gate_up_row<kInput>(p, chunk, row);
  } else {
    const int at = row - gate_up_rows;
    const int l = at % p.columns, first = at / p.columns * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.value[i] =
          l < p.length ? p.down[int64_t{l} * p.inner + chunk * kChunk + unit_of_column(first + i)] : uint16_t{0};
    }
  }
  store_pack<uint16_t, 8>(p.packed + (int64_t{chunk} * rows + row) * 8, out);
}

// ---- Forward ----

template <class P>
struct Forward {
  // Three warpgroups hide each other's waits; 128 columns need more registers than a third of a block has.
  static constexpr int kWarpgroups = P::kColumns <= 112 ? 3 : 2;
  static constexpr uint32_t kTileBytes = P::kSteps * 16 * 32;
  static constexpr uint32_t kTilesBytes = kWarpgroups * 4 * 2 * kTileBytes;  // h and y of each warp
  static constexpr int kStages =
      (kSharedLimit - kTilesBytes) / P::kChunkBytes < 8 ? (kSharedLimit - kTilesBytes) / P::kChunkBytes : 8;
  static constexpr uint32_t kBarriersAt = kTilesBytes + kStages * P::kChunkBytes;
  static constexpr uint32_t kBytes = kBarriersAt + 2 * kStages * 8;
};

template <class P, Input kInput>
__global__ void __launch_bounds__((Forward<P>::kWarpgroups + 1) * 128, 1) mix_forward(MlpMixForward p) {
#if HRM_SM90A
  using Shared = Forward<P>;
  constexpr int kStages = Shared::kStages;
  constexpr int kWarpgroups = Shared::kWarpgroups;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const ring = shared;
  unsigned char* const tiles = shared + kStages * P::kChunkBytes;
  auto* const full = reinterpret_cast<uint64_t*>(shared + Shared::kBarriersAt);
  uint64_t* const empty = full + kStages;

  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int warpgroup = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = static_cast<int>(p.inner) / kChunk;
  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const int units = static_cast<int>(p.batch) * groups;
  const int block_first = static_cast<int>(blockIdx.x) * kWarpgroups;
  const int stride = static_cast<int>(gridDim.x) * kWarpgroups;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kWarpgroups * 4);
    }
    barrier_init_fence();
  }
  wait_for_earlier();
  __syncthreads();

  if (warpgroup == kWarpgroups) {
    registers_decrease<24>();
    if (warp == kWarpgroups * 4 && lane == 0) {
      RingPosition<kStages> at;
      for (int first = block_first; first < units; first += stride) {
        for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
          barrier_wait(empty + at.stage, at.parity ^ 1);
          barrier_arrive_expect(full + at.stage, P::kChunkBytes);
          bulk_load(ring + at.stage * P::kChunkBytes,
                    static_cast<const unsigned char*>(p.packed) + int64_t{chunk} * P::kChunkBytes, P::kChunkBytes,
                    full + at.stage);
        }
      }
    }
  } else {
    registers_increase<kWarpgroups == 3 ? 160 : 240>();
    constexpr int kBlocks = P::kColumns / 8;
    const int length = static_cast<int>(p.length);
    const int row = lane / 4, quad = lane % 4;
    const uint32_t h_tile = shared_address(tiles) + static_cast<uint32_t>(warp) * 2 * Shared::kTileBytes;
    const uint32_t y_tile = h_tile + Shared::kTileBytes;
    const auto* h = static_cast<const uint16_t*>(p.h);
    auto* y = static_cast<uint16_t*>(p.y);
    const uint32_t ring_address = shared_address(ring);

    // First element of a unit's 16 channels of this warp.
    const auto base_of = [&](int unit) {
      return int64_t{unit / groups} * length * p.width + unit % groups * kUnitChannels + warp % 4 * 16;
    };
    const auto prefetch = [&](int unit) {
      if (unit >= units) return;
      const uint16_t* from = h + base_of(unit);
      for (int i = lane; i < 2 * length; i += 32) {
        load_async_16(h_tile + tile_offset(i / 2, i % 2), from + int64_t{i / 2} * p.width + i % 2 * 8);
      }
    };
    const auto release = [&](int stage) {
      if (lane == 0) barrier_arrive(empty + stage);
    };

    // Padded positions are zero once and for all.
    for (int i = lane + 2 * length; i < P::kSteps * 32; i += 32) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(h_tile + tile_offset(i / 2, i % 2)), "r"(0)
                   : "memory");
    }

    RingPosition<kStages> at;
    prefetch(block_first + warpgroup);
    for (int first = block_first; first < units; first += stride) {
      const int unit = first + warpgroup;
      if (unit >= units) {  // the same for the whole warpgroup
        for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
          barrier_wait(full + at.stage, at.parity);
          __syncwarp();  // a lane left behind would find the barrier two loads on
          release(at.stage);
        }
        continue;
      }
      uint32_t h_t[P::kSteps][4];
      load_async_wait();
      __syncwarp();
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        load_matrices_transposed(h_t[s], h_tile + tile_offset(16 * s + lane / 16 * 8 + lane % 8, lane / 8 % 2));
      }
      __syncwarp();
      prefetch(unit + stride);

      float z[P::kColumns / 2];
      const auto start_gate_up = [&](float(&g)[kChunk], int stage) {
        const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * P::kChunkBytes;
        registers_fence(g);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<2 * kChunk, kInput>::registers(g, h_t[s],
                                             descriptor_core(tile + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
        }
        wgmma_commit();
      };
      const auto start_down = [&](const uint32_t(&a)[kChunk / 16][4], int stage, bool accumulate) {
        const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * P::kChunkBytes + P::kGateUpBytes;
        registers_fence(z);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kChunk / 16; ++s) {
          Mma<P::kColumns, kInput>::registers(
              z, a[s], descriptor_core(tile + s * 2 * P::kColumns * 16, P::kColumns * 16, 128), accumulate || s > 0);
        }
        wgmma_commit();
      };
      const auto activate = [&](const float(&g)[kChunk], uint32_t(&a)[kChunk / 16][4]) {
#pragma unroll
        for (int i = 0; i < kChunk / 4; ++i) {
          const Logistic s = logistic<kInput>(g[2 * i], g[2 * i + 1]);
          a[i / 4][i % 4] = pack_pair<kInput>(s.silu[0] * g[kChunk / 2 + 2 * i], s.silu[1] * g[kChunk / 2 + 2 * i + 1]);
        }
      };

      // The next chunk's first product runs beside this chunk's second one, and that beside the next activation. The
      // number of chunks is even.
      float g[kChunk];
      uint32_t a[2][kChunk / 16][4];
      barrier_wait(full + at.stage, at.parity);
      start_gate_up(g, at.stage);
      int stage = at.stage;
      at.advance();
      wgmma_wait<0>();
      registers_fence(g);
      activate(g, a[0]);
      const auto step = [&](auto which, bool accumulate) {
        constexpr int kThis = decltype(which)::value;
        barrier_wait(full + at.stage, at.parity);
        start_gate_up(g, at.stage);
        start_down(a[kThis], stage, accumulate);
        wgmma_wait<1>();
        registers_fence(g);
        activate(g, a[1 - kThis]);
        registers_fence(a[1 - kThis]);
        wgmma_wait<0>();
        registers_fence(z);
        release(stage);
        stage = at.stage;
        at.advance();
      };
      step(std::integral_constant<int, 0>{}, false);
      for (int chunk = 2; chunk < chunks; chunk += 2) {
        step(std::integral_constant<int, 1>{}, true);
        step(std::integral_constant<int, 0>{}, true);
      }
      start_down(a[1], stage, true);
      wgmma_wait<0>();
      registers_fence(z);
      release(stage);

      // y = rms(h + z) along the row.
      float squares[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 residual = unpack_pair<kInput>(h_t[j / 2][j % 2 * 2 + i]);
          z[4 * j + 2 * i] += residual.x;
          z[4 * j + 2 * i + 1] += residual.y;
          squares[i] += z[4 * j + 2 * i] * z[4 * j + 2 * i] + z[4 * j + 2 * i + 1] * z[4 * j + 2 * i + 1];
        }
      }
      const int64_t base = base_of(unit);
      float rstd[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
        rstd[i] = rsqrtf(squares[i] / static_cast<float>(length) + p.eps);
        if (p.rstd != nullptr && quad == 0) {
          p.rstd[int64_t{unit} * kUnitChannels + warp % 4 * 16 + row + 8 * i] = rstd[i];
        }
      }
      const auto out = [&](int j, int i) {
        return pack_pair<kInput>(z[4 * j + 2 * i] * rstd[i], z[4 * j + 2 * i + 1] * rstd[i]);
      };
#pragma unroll
      for (int j = 0; j + 1 < kBlocks; j += 2) {
        store_matrices_transposed(y_tile + tile_offset(8 * j + lane / 16 * 8 + lane % 8, lane / 8 % 2), out(j, 0),
                                  out(j, 1), out(j + 1, 0), out(j + 1, 1));
      }
      if constexpr (kBlocks % 2 == 1) {
        store_matrices_transposed(y_tile + tile_offset(8 * (kBlocks - 1) + lane % 8, lane / 8 % 2), out(kBlocks - 1, 0),
                                  out(kBlocks - 1, 1));
      }
      __syncwarp();
      for (int i = lane; i < 2 * length; i += 32) {
        *reinterpret_cast<uint4*>(y + base + int64_t{i / 2} * p.width + i % 2 * 8) =
            load_shared_16(y_tile + tile_offset(i / 2, i % 2));
      }
      __syncwarp();
    }
  }
#endif
}

template <class P, Input kInput>
cudaError_t start(const MlpMixForward& p, cudaStream_t stream) {
  using Shared = Forward<P>;
  constexpr int kWarpgroups = Shared::kWarpgroups;
  const auto kernel = &mix_forward<P, kInput>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::kBytes);
  if (error != cudaSuccess) return error;

  PackParams pack{};
  pack.gate_up = static_cast<const uint16_t*>(p.weight_gate_up);
  pack.down = static_cast<const uint16_t*>(p.weight_down);
  pack.packed = static_cast<uint16_t*>(p.packed);
  pack.length = static_cast<int>(p.length);
  pack.inner = static_cast<int>(p.inner);
  pack.steps = P::kSteps;
  pack.columns = P::kColumns;
  constexpr unsigned kRows = P::kChunkBytes / 16;
  error = start_early(&pack_weights<kInput>, dim3((kRows + 127) / 128, static_cast<unsigned>(p.inner / kChunk)), 128, 0,
                      stream, pack);
  if (error != cudaSuccess) return error;

  const int processors = multiprocessors();
  const int64_t units = p.batch * (p.width / kUnitChannels);
  const int64_t blocks = (units + kWarpgroups - 1) / kWarpgroups;
  return start_early(kernel, static_cast<unsigned>(blocks < processors ? blocks : processors), (kWarpgroups + 1) * 128,
                     Shared::kBytes, stream, p);
}

template <class P>
cudaError_t start_by_element(const MlpMixForward& p, cudaStream_t stream) {
  return p.half ? start<P, Input::f16>(p, stream) : start<P, Input::bf16>(p, stream);
}

}  // namespace

bool mlp_mix_fits(int64_t length, int64_t width, int64_t inner) {
  return sm90::is_hopper() && length >= 1 && length <= 128 && width % kUnitChannels == 0 && inner % kInnerMultiple == 0;
}

int64_t mlp_mix_packed_bytes(int64_t length, int64_t inner) {
  const int64_t bytes = length <= 96    ? Positions<6, 96>::kChunkBytes
                        : length <= 104 ? Positions<7, 104>::kChunkBytes
                        : length <= 112 ? Positions<7, 112>::kChunkBytes
                                        : Positions<8, 128>::kChunkBytes;
  return inner / kChunk * bytes;
}

cudaError_t launch(const MlpMixForward& params, cudaStream_t stream) {
  if (params.length <= 96) return start_by_element<Positions<6, 96>>(params, stream);
  if (params.length <= 104) return start_by_element<Positions<7, 104>>(params, stream);
  if (params.length <= 112) return start_by_element<Positions<7, 112>>(params, stream);
  return start_by_element<Positions<8, 128>>(params, stream);
}

}  // namespace hrm::ops::cuda
