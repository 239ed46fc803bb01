// The backward pass of the MLP over positions: three kernels per part of the batch. Legend as in mlp_mix.cuh.
//
// mix_gradient: as the forward kernel, a warpgroup owns 64 channels of a sample, whose h^T and gradient of v = h + z
// stay in registers (dv comes from y and rstd; a sum along a row of the tile):
//
//   G (64 d x 64)    = h^T @ gate_up chunk        again, as in the forward pass
//   da (64 d x 32 f) = dv^T @ down chunk
//   dG               = derivative of silu(gate) * up    in registers
//   dh (64 d x l)   += dG @ gate_up chunk; at last + dv
//
// and writes dG and silu(gate) * up to memory, as 16-bit core matrices that the next kernel copies as they are.
//
// mix_weight_gradient: [dG; a] (3F x 64 d) @ [h; dv] (64 d x l), summed over all units; a block owns 256 of the 3F rows
// and every kSplits-th unit. mix_reduce adds the splits, in their order, to the gradients.
#include <type_traits>

#include "ops/cuda/mlp_mix.cuh"
#include "ops/cuda/mlp_mix.h"
#include "ops/cuda/sm90/tensor_map.h"

namespace hrm::ops::cuda {
namespace {

using namespace mix;  // NOLINT

constexpr int kWarpgroups = 2;
constexpr int kTileRows = kInnerMultiple;  // of a block of mix_weight_gradient
constexpr int kSplits = 22;  // times six tiles of 256 rows (inner = 512): the 132 processors of an H100 or H200

template <class P>
struct Backward {
  static constexpr uint32_t kDownTransposedBytes = P::kSteps * 16 * 2 * kChunk;
  static constexpr uint32_t kGateUpTransposedBytes = 2 * kChunk * 2 * P::kColumns;
  static constexpr uint32_t kChunkBytes = P::kGateUpBytes + kDownTransposedBytes + kGateUpTransposedBytes;
  static constexpr uint32_t kTileBytes = P::kSteps * 16 * 32;
  static constexpr uint32_t kTilesBytes = kWarpgroups * 4 * 4 * kTileBytes;  // h, grad_y, y and out of each warp
  static constexpr int kStages = (kSharedLimit - kTilesBytes) / kChunkBytes;
  static constexpr uint32_t kBarriersAt = kTilesBytes + kStages * kChunkBytes;
  static constexpr uint32_t kBytes = kBarriersAt + 2 * kStages * 8;
  // A unit's h and dv: 64 channels x columns.
  static constexpr uint32_t kImageBytes = kUnitChannels * 2 * P::kColumns;
};

// Bytes of a unit's dG and a.
__host__ __device__ constexpr int64_t rows_bytes(int inner) {
  return int64_t{3} * inner * kUnitChannels * 2;
}

// ---- Packing ----

// A thread writes one row of a core matrix, 16 bytes.
template <Input kInput>
__global__ void pack_weights(PackParams p) {
  wait_for_earlier();
  const int gate_up_rows = p.steps * 2 * 2 * kChunk;  // (step, half of 8 positions, column)
  const int down_rows = p.steps * 2 * kChunk;
  const int rows = gate_up_rows + down_rows + 2 * kChunk / 8 * p.columns;
  const int chunk = static_cast<int>(blockIdx.y);
  int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  uint16_t* to = p.packed + (int64_t{chunk} * rows + row) * 8;
  Pack<uint16_t, 8> out;
  if (row < gate_up_rows) {
    out = pack_gate_up_row<kInput>(p, chunk, row);
  } else if (row -= gate_up_rows; row < down_rows) {
    const int f = chunk * kChunk + unit_of_column(row % kChunk), first = row / kChunk * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.value[i] = first + i < p.length ? p.down[int64_t{first + i} * p.inner + f] : uint16_t{0};
    }
  } else {
    row -= down_rows;
    const int l = row % p.columns, first = row / p.columns * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = first + i;  // of the chunk's 32 gate and 32 up units
      const int64_t source = n / kChunk * p.inner + chunk * kChunk + unit_of_column(n % kChunk);
      out.value[i] = l < p.length ? p.gate_up[source * p.length + l] : uint16_t{0};
    }
  }
  store_pack<uint16_t, 8>(to, out);
}

// ---- The gradient of h, and what the weights' gradients are made of ----

template <class P, Input kInput>
__global__ void __launch_bounds__((kWarpgroups + 1) * 128, 1)
    mix_gradient(MlpMixBackward p, int first_sample, int samples) {
#if HRM_SM90A
  using B = Backward<P>;
  constexpr int kStages = B::kStages;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const ring = shared;
  unsigned char* const tiles = shared + kStages * B::kChunkBytes;
  auto* const full = reinterpret_cast<uint64_t*>(shared + B::kBarriersAt);
  uint64_t* const empty = full + kStages;

  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int warpgroup = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = static_cast<int>(p.inner) / kChunk;
  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const int units = samples * groups;  // of this part of the batch
  const int stride = static_cast<int>(gridDim.x) * kWarpgroups;
  const int block_first = static_cast<int>(blockIdx.x) * kWarpgroups;

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
          barrier_arrive_expect(full + at.stage, B::kChunkBytes);
          bulk_load(ring + at.stage * B::kChunkBytes,
                    static_cast<const unsigned char*>(p.packed) + int64_t{chunk} * B::kChunkBytes, B::kChunkBytes,
                    full + at.stage);
        }
      }
    }
  } else {
    registers_increase<240>();
    constexpr int kBlocks = P::kColumns / 8;
    const int length = static_cast<int>(p.length);
    const int row = lane / 4, quad = lane % 4;
    const int slab = warp % 4;  // 16 channels
    const uint32_t h_tile = shared_address(tiles) + static_cast<uint32_t>(warp) * 4 * B::kTileBytes;
    const uint32_t grad_tile = h_tile + B::kTileBytes;
    const uint32_t y_tile = grad_tile + B::kTileBytes;
    const uint32_t out_tile = y_tile + B::kTileBytes;
    const uint32_t ring_address = shared_address(ring);
    const auto* h = static_cast<const uint16_t*>(p.h);
    const auto* grad_y = static_cast<const uint16_t*>(p.grad_y);
    const auto* y = static_cast<const uint16_t*>(p.y);
    auto* grad_h = static_cast<uint16_t*>(p.grad_h);
    auto* rows = static_cast<unsigned char*>(p.rows);
    auto* images = static_cast<unsigned char*>(p.images);

    const auto base_of = [&](int unit) {
      return int64_t{first_sample + unit / groups} * length * p.width + unit % groups * kUnitChannels + slab * 16;
    };
    const auto prefetch = [&](int unit) {
      if (unit >= units) return;
      const int64_t base = base_of(unit);
      for (int i = lane; i < 2 * length; i += 32) {
        const int64_t from = base + int64_t{i / 2} * p.width + i % 2 * 8;
        const uint32_t to = tile_offset(i / 2, i % 2);
        load_async_16(h_tile + to, h + from);
        load_async_16(grad_tile + to, grad_y + from);
        load_async_16(y_tile + to, y + from);
      }
    };
    const auto release = [&](int stage) {
      if (lane == 0) barrier_arrive(empty + stage);
    };
    // A tile as the core matrices of a K-major operand: (8 channels, position) -> 16 bytes.
    const auto write_image = [&](uint32_t tile, unsigned char* to) {
      for (int i = lane; i < 2 * P::kColumns; i += 32) {
        const int l = i % P::kColumns, half = i / P::kColumns;
        *reinterpret_cast<uint4*>(to + ((slab * 2 + half) * P::kColumns + l) * 16) =
            load_shared_16(tile + tile_offset(l, half));
      }
    };

    // Padded positions are zero once and for all.
    for (int i = lane + 2 * length; i < P::kSteps * 32; i += 32) {
      const uint32_t at = tile_offset(i / 2, i % 2);
      for (int tile = 0; tile < 4; ++tile) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(h_tile + tile * B::kTileBytes + at), "r"(0)
                     : "memory");
      }
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
      uint32_t h_t[P::kSteps][4], dv[P::kSteps][4];
      load_async_wait();
      __syncwarp();
      {
        // dv = rstd * (grad_y - y * mean of grad_y * y)
        uint32_t y_t[P::kSteps][4];
        float along[2] = {0, 0};
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          const uint32_t from = tile_offset(16 * s + lane / 16 * 8 + lane % 8, lane / 8 % 2);
          load_matrices_transposed(h_t[s], h_tile + from);
          load_matrices_transposed(dv[s], grad_tile + from);
          load_matrices_transposed(y_t[s], y_tile + from);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 g = unpack_pair<kInput>(dv[s][i]), n = unpack_pair<kInput>(y_t[s][i]);
            along[i % 2] += g.x * n.x + g.y * n.y;
          }
        }
        float rstd[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          along[i] += __shfl_xor_sync(0xffffffffu, along[i], 1);
          along[i] += __shfl_xor_sync(0xffffffffu, along[i], 2);
          along[i] /= static_cast<float>(length);
          rstd[i] = p.rstd[(int64_t{first_sample} * groups + unit) * kUnitChannels + slab * 16 + row + 8 * i];
        }
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 g = unpack_pair<kInput>(dv[s][i]), n = unpack_pair<kInput>(y_t[s][i]);
            dv[s][i] =
                pack_pair<kInput>(rstd[i % 2] * (g.x - n.x * along[i % 2]), rstd[i % 2] * (g.y - n.y * along[i % 2]));
          }
        }
      }
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        store_matrices_transposed(out_tile + tile_offset(16 * s + lane / 16 * 8 + lane % 8, lane / 8 % 2), dv[s][0],
                                  dv[s][1], dv[s][2], dv[s][3]);
      }
      __syncwarp();
      unsigned char* const image = images + int64_t{unit} * 2 * B::kImageBytes;
      write_image(h_tile, image);
      write_image(out_tile, image + B::kImageBytes);
      __syncwarp();
      prefetch(unit + stride);

      float dh[P::kColumns / 2];
      float g[kChunk], da[kChunk / 2];
      uint32_t dg[2][2 * kChunk / 16][4];
      // Row `row` of the core matrix (8 hidden units of this quad) x (8 channels) of this warp.
      unsigned char* const row_to =
          rows + unit * rows_bytes(static_cast<int>(p.inner)) + (quad * kUnitChannels / 8 + slab * 2) * 128 + row * 16;
      const int64_t kind_bytes = p.inner * kUnitChannels * 2;

      const auto start_recompute = [&](int stage) {
        const uint32_t gate_up = ring_address + static_cast<uint32_t>(stage) * B::kChunkBytes;
        const uint32_t down = gate_up + P::kGateUpBytes;
        registers_fence(g);
        registers_fence(da);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<2 * kChunk, kInput>::registers(
              g, h_t[s], descriptor_core(gate_up + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
        }
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<kChunk, kInput>::registers(da, dv[s], descriptor_core(down + s * 2 * kChunk * 16, kChunk * 16, 128),
                                         s > 0);
        }
        wgmma_commit();
      };
      const auto start_dh = [&](const uint32_t(&a)[2 * kChunk / 16][4], int stage, bool accumulate) {
        const uint32_t tile =
            ring_address + static_cast<uint32_t>(stage) * B::kChunkBytes + P::kGateUpBytes + B::kDownTransposedBytes;
        registers_fence(dh);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 2 * kChunk / 16; ++s) {
          Mma<P::kColumns, kInput>::registers(
              dh, a[s], descriptor_core(tile + s * 2 * P::kColumns * 16, P::kColumns * 16, 128), accumulate || s > 0);
        }
        wgmma_commit();
      };
      // g, da -> dg; a and dg of this chunk to memory.
      const auto differentiate = [&](uint32_t(&out)[2 * kChunk / 16][4], int chunk) {
        uint32_t act[kChunk / 16][4];
#pragma unroll
        for (int i = 0; i < kChunk / 4; ++i) {
          const Logistic s = logistic<kInput>(g[2 * i], g[2 * i + 1]);
          float a[2], d_gate[2], d_up[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float up = g[kChunk / 2 + 2 * i + e], grad = da[2 * i + e];
            a[e] = s.silu[e] * up;
            d_up[e] = grad * s.silu[e];
            d_gate[e] = grad * up * (s.sigmoid[e] + s.silu[e] * (1.0f - s.sigmoid[e]));
          }
          act[i / 4][i % 4] = pack_pair<kInput>(a[0], a[1]);
          out[i / 4][i % 4] = pack_pair<kInput>(d_gate[0], d_gate[1]);
          out[kChunk / 16 + i / 4][i % 4] = pack_pair<kInput>(d_up[0], d_up[1]);
        }
        unsigned char* const to = row_to + int64_t{chunk} * (kChunk * kUnitChannels * 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // channels row and row + 8
          *reinterpret_cast<uint4*>(to + i * 128) = {out[0][i], out[0][2 + i], out[1][i], out[1][2 + i]};
          *reinterpret_cast<uint4*>(to + kind_bytes + i * 128) = {out[2][i], out[2][2 + i], out[3][i], out[3][2 + i]};
          *reinterpret_cast<uint4*>(to + 2 * kind_bytes + i * 128) = {act[0][i], act[0][2 + i], act[1][i],
                                                                      act[1][2 + i]};
        }
      };

      // The next chunk's products run beside this chunk's share of dh, and that beside the next derivative.
      barrier_wait(full + at.stage, at.parity);
      start_recompute(at.stage);
      int stage = at.stage;
      at.advance();
      wgmma_wait<0>();
      registers_fence(g);
      registers_fence(da);
      differentiate(dg[0], 0);
      const auto step = [&](auto which, int chunk) {
        constexpr int kThis = decltype(which)::value;
        barrier_wait(full + at.stage, at.parity);
        start_recompute(at.stage);
        start_dh(dg[kThis], stage, chunk > 1);
        wgmma_wait<1>();
        registers_fence(g);
        registers_fence(da);
        differentiate(dg[1 - kThis], chunk);
        registers_fence(dg[1 - kThis]);
        wgmma_wait<0>();
        registers_fence(dh);
        release(stage);
        stage = at.stage;
        at.advance();
      };
      step(std::integral_constant<int, 0>{}, 1);
      for (int chunk = 2; chunk < chunks; chunk += 2) {
        step(std::integral_constant<int, 1>{}, chunk);
        step(std::integral_constant<int, 0>{}, chunk + 1);
      }
      start_dh(dg[1], stage, true);
      wgmma_wait<0>();
      registers_fence(dh);
      release(stage);

      const auto out = [&](int j, int i) {
        const float2 residual = unpack_pair<kInput>(dv[j / 2][j % 2 * 2 + i]);
        return pack_pair<kInput>(dh[4 * j + 2 * i] + residual.x, dh[4 * j + 2 * i + 1] + residual.y);
      };
#pragma unroll
      for (int j = 0; j + 1 < kBlocks; j += 2) {
        store_matrices_transposed(out_tile + tile_offset(8 * j + lane / 16 * 8 + lane % 8, lane / 8 % 2), out(j, 0),
                                  out(j, 1), out(j + 1, 0), out(j + 1, 1));
      }
      if constexpr (kBlocks % 2 == 1) {
        store_matrices_transposed(out_tile + tile_offset(8 * (kBlocks - 1) + lane % 8, lane / 8 % 2),
                                  out(kBlocks - 1, 0), out(kBlocks - 1, 1));
      }
      __syncwarp();
      const int64_t base = base_of(unit);
      for (int i = lane; i < 2 * length; i += 32) {
        *reinterpret_cast<uint4*>(grad_h + base + int64_t{i / 2} * p.width + i % 2 * 8) =
            load_shared_16(out_tile + tile_offset(i / 2, i % 2));
      }
      __syncwarp();
    }
  }
#endif
}

// ---- The weights' gradients ----

template <class P>
struct WeightGradient {
  static constexpr uint32_t kRowsBytes = kTileRows * kUnitChannels * 2;
  static constexpr uint32_t kStageBytes = kRowsBytes + Backward<P>::kImageBytes;
  static constexpr int kStages = kSharedLimit / kStageBytes;
  static constexpr uint32_t kBytes = kStages * (kStageBytes + 16);
};

template <class P, Input kInput>
__global__ void __launch_bounds__((kWarpgroups + 1) * 128, 1) mix_weight_gradient(MlpMixBackward p, int units) {
#if HRM_SM90A
  using W = WeightGradient<P>;
  constexpr int kStages = W::kStages;
  extern __shared__ __align__(128) unsigned char shared[];
  auto* const full = reinterpret_cast<uint64_t*>(shared + kStages * W::kStageBytes);
  uint64_t* const empty = full + kStages;
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int warpgroup = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y);
  const int inner = static_cast<int>(p.inner);

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
      // Rows of dG meet h, those of a meet dv.
      const int image = tile * kTileRows < 2 * inner ? 0 : 1;
      const auto* rows = static_cast<const unsigned char*>(p.rows) + int64_t{tile} * W::kRowsBytes;
      const auto* images = static_cast<const unsigned char*>(p.images) + image * Backward<P>::kImageBytes;
      RingPosition<kStages> at;
      for (int unit = split; unit < units; unit += kSplits, at.advance()) {
        unsigned char* const to = shared + at.stage * W::kStageBytes;
        barrier_wait(empty + at.stage, at.parity ^ 1);
        barrier_arrive_expect(full + at.stage, W::kStageBytes);
        bulk_load(to, rows + unit * rows_bytes(inner), W::kRowsBytes, full + at.stage);
        bulk_load(to + W::kRowsBytes, images + int64_t{unit} * 2 * Backward<P>::kImageBytes, Backward<P>::kImageBytes,
                  full + at.stage);
      }
    }
  } else {
    registers_increase<240>();
    float sum[2][P::kColumns / 2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < P::kColumns / 2; ++i) sum[m][i] = 0;
    }
    RingPosition<kStages> at;
    int before = -1;
    for (int unit = split; unit < units; unit += kSplits, at.advance()) {
      barrier_wait(full + at.stage, at.parity);
      const uint32_t a = shared_address(shared) + static_cast<uint32_t>(at.stage) * W::kStageBytes +
                         static_cast<uint32_t>(warpgroup) * (W::kRowsBytes / 2);
      const uint32_t b = shared_address(shared) + static_cast<uint32_t>(at.stage) * W::kStageBytes + W::kRowsBytes;
      registers_fence(sum[0]);
      registers_fence(sum[1]);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kUnitChannels / 16; ++s) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Mma<P::kColumns, kInput>::template shared<Major::mn, Major::k>(
              sum[m], descriptor_core(a + m * (W::kRowsBytes / 4) + s * 256, 128, 1024),
              descriptor_core(b + s * 2 * P::kColumns * 16, P::kColumns * 16, 128), true);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && lane == 0) barrier_arrive(empty + before);
      before = at.stage;
    }
    wgmma_wait<0>();
    registers_fence(sum[0]);
    registers_fence(sum[1]);
    float* const to =
        p.partial + (int64_t{split} * gridDim.x + tile) * kTileRows * P::kColumns + warpgroup * 128 * P::kColumns;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < P::kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int r = m * 64 + warp % 4 * 16 + lane / 4 + 8 * i;
          *reinterpret_cast<float2*>(to + r * P::kColumns + 8 * j + lane % 4 * 2) = {sum[m][4 * j + 2 * i],
                                                                                     sum[m][4 * j + 2 * i + 1]};
        }
      }
    }
  }
#endif
}

__global__ void mix_reduce(MlpMixBackward p, int columns) {
  wait_for_earlier();
  const int inner = static_cast<int>(p.inner), length = static_cast<int>(p.length);
  const int row = static_cast<int>(blockIdx.x), l = static_cast<int>(threadIdx.x);
  if (l >= length) return;
  const int64_t stride = int64_t{3} * inner * columns;
  const float* from = p.partial + int64_t{row} * columns + l;
  float sum = 0;
#pragma unroll
  for (int split = 0; split < kSplits; ++split) sum += from[split * stride];
  float* const to =
      row < 2 * inner ? p.grad_gate_up + int64_t{row} * length + l : p.grad_down + int64_t{l} * inner + row - 2 * inner;
  *to += sum;
}

template <class P, Input kInput>
cudaError_t start(const MlpMixBackward& p, cudaStream_t stream) {
  using B = Backward<P>;
  using W = WeightGradient<P>;
  const auto gradient = &mix_gradient<P, kInput>;
  const auto weight_gradient = &mix_weight_gradient<P, kInput>;
  cudaError_t error = cudaFuncSetAttribute(gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, B::kBytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(weight_gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, W::kBytes);
  if (error != cudaSuccess) return error;
  const int processors = multiprocessors();

  PackParams pack{};
  pack.gate_up = static_cast<const uint16_t*>(p.weight_gate_up);
  pack.down = static_cast<const uint16_t*>(p.weight_down);
  pack.packed = static_cast<uint16_t*>(p.packed);
  pack.length = static_cast<int>(p.length);
  pack.inner = static_cast<int>(p.inner);
  pack.steps = P::kSteps;
  pack.columns = P::kColumns;
  constexpr unsigned kPackRows = B::kChunkBytes / 16;
  error = start_early(&pack_weights<kInput>, dim3((kPackRows + 127) / 128, static_cast<unsigned>(p.inner / kChunk)),
                      128, 0, stream, pack);
  if (error != cudaSuccess) return error;

  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const unsigned tiles = static_cast<unsigned>(3 * p.inner / kTileRows);
  for (int64_t first = 0; first < p.batch; first += p.part) {
    const int samples = static_cast<int>(p.batch - first < p.part ? p.batch - first : p.part);
    const int units = samples * groups;
    const int blocks = (units + kWarpgroups - 1) / kWarpgroups;
    error = start_early(gradient, static_cast<unsigned>(blocks < processors ? blocks : processors),
                        (kWarpgroups + 1) * 128, B::kBytes, stream, p, static_cast<int>(first), samples);
    if (error != cudaSuccess) return error;
    error = start_early(weight_gradient, dim3(tiles, kSplits), (kWarpgroups + 1) * 128, W::kBytes, stream, p, units);
    if (error != cudaSuccess) return error;
    error = start_early(&mix_reduce, static_cast<unsigned>(3 * p.inner), 128, 0, stream, p, P::kColumns);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class P>
cudaError_t start_by_element(const MlpMixBackward& p, cudaStream_t stream) {
  return p.half ? start<P, Input::f16>(p, stream) : start<P, Input::bf16>(p, stream);
}

template <class P>
MlpMixScratch scratch_of(int64_t part, int64_t width, int64_t inner) {
  const int64_t units = part * (width / kUnitChannels);
  return {inner / kChunk * Backward<P>::kChunkBytes, units * rows_bytes(static_cast<int>(inner)),
          units * 2 * Backward<P>::kImageBytes, 3 * inner * P::kColumns * kSplits * 4};
}

}  // namespace

MlpMixScratch mlp_mix_scratch(int64_t part, int64_t length, int64_t width, int64_t inner) {
  if (length <= 96) return scratch_of<Positions<6, 96>>(part, width, inner);
  if (length <= 104) return scratch_of<Positions<7, 104>>(part, width, inner);
  if (length <= 112) return scratch_of<Positions<7, 112>>(part, width, inner);
  return scratch_of<Positions<8, 128>>(part, width, inner);
}

cudaError_t launch(const MlpMixBackward& params, cudaStream_t stream) {
  if (params.length <= 96) return start_by_element<Positions<6, 96>>(params, stream);
  if (params.length <= 104) return start_by_element<Positions<7, 104>>(params, stream);
  if (params.length <= 112) return start_by_element<Positions<7, 112>>(params, stream);
  return start_by_element<Positions<8, 128>>(params, stream);
}

}  // namespace hrm::ops::cuda
