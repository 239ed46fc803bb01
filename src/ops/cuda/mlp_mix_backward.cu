// The backward pass of the MLP over positions: two kernels per part of the batch, each of which computes the hidden
// values again rather than pass them through memory (three times F for every channel). Legend as in mlp_mix.cuh.
//
// mix_gradient: as in the forward kernel, a warpgroup owns 64 channels of a sample. h^T and the gradient dv of v = h +
// z (from y and rstd, by a sum along a row of the tile) stay in registers:
//
//   G (64 d x 64)    = h^T @ gate_up chunk        again, as in the forward pass
//   da (64 d x 64 f) = dv^T @ down                for two chunks at once
//   dG               = derivative of silu(gate) * up    in registers
//   dh (64 d x l)   += dG @ gate_up chunk; at last + dv
//
// It leaves h and dv behind as core matrices, ready to be operands.
//
// mix_weight_gradient: [dG; a] (3F x 64 d) @ [h; dv] (64 d x l), summed over units. A block owns 64 of the hidden
// units, whose weights stay in shared memory, and every kSplits-th unit of work. Some warpgroups compute dG and a of a
// unit and hand them over in shared memory; the other ones hold the sums, 192 x l, in registers. mix_reduce adds the
// splits, in their order, to the gradients.
#include <type_traits>

#include "ops/cuda/mlp_mix.cuh"
#include "ops/cuda/mlp_mix.h"

namespace hrm::ops::cuda {
namespace {

using namespace mix;  // NOLINT

constexpr int kWarpgroups = 2;  // of mix_gradient
constexpr int kSplits = 16;     // times eight slices (inner = 512): 128 of the 132 processors of an H100 or H200

template <class P>
struct Backward {
  // Chunks are packed in pairs: gate_up of the first, down of both (a product with 32 columns would be as slow as one
  // with 64), gate_up of the second.
  static constexpr uint32_t kDownBytes = P::kSteps * 16 * 2 * 2 * kChunk;
  static constexpr uint32_t kFirstBytes = P::kGateUpBytes + kDownBytes;
  static constexpr uint32_t kPairBytes = kFirstBytes + P::kGateUpBytes;
  static constexpr uint32_t kStageBytes = kFirstBytes;
  static constexpr uint32_t kTileBytes = P::kSteps * 16 * 32;
  static constexpr uint32_t kTilesBytes = kWarpgroups * 4 * 4 * kTileBytes;  // h, grad_y, y and out of each warp
  static constexpr int kStages = (kSharedLimit - kTilesBytes) / kStageBytes;
  static constexpr uint32_t kBarriersAt = kTilesBytes + kStages * kStageBytes;
  static constexpr uint32_t kBytes = kBarriersAt + 2 * kStages * 8;
  // A unit's h or dv: 64 channels x columns.
  static constexpr uint32_t kImageBytes = kUnitChannels * 2 * P::kColumns;
};

// ---- Packing ----

// A thread writes one row of a core matrix, 16 bytes.
template <Input kInput>
__global__ void pack_weights(PackParams p) {
  const int gate_up_rows = p.steps * 2 * 2 * kChunk;  // (step, half of 8 positions, column)
  const int down_rows = p.steps * 2 * 2 * kChunk;
  const int rows = 2 * gate_up_rows + down_rows;
  const int pair = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  uint16_t* to = p.packed + (int64_t{pair} * rows + row) * 8;
  Pack<uint16_t, 8> out;
  if (row < gate_up_rows) {
    out = pack_gate_up_row<kInput>(p, 2 * pair, row);
  } else if (row >= gate_up_rows + down_rows) {
    out = pack_gate_up_row<kInput>(p, 2 * pair + 1, row - gate_up_rows - down_rows);
  } else {
    const int n = (row - gate_up_rows) % (2 * kChunk), first = (row - gate_up_rows) / (2 * kChunk) * 8;
    const int f = (2 * pair + n / kChunk) * kChunk + unit_of_column(n % kChunk);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.value[i] = first + i < p.length ? p.down[int64_t{first + i} * p.inner + f] : uint16_t{0};
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
  unsigned char* const tiles = shared + kStages * B::kStageBytes;
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
  __syncthreads();

  if (warpgroup == kWarpgroups) {
    registers_decrease<24>();
    if (warp == kWarpgroups * 4 && lane == 0) {
      RingPosition<kStages> at;
      for (int first = block_first; first < units; first += stride) {
        const auto* from = static_cast<const unsigned char*>(p.packed);
        for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
          barrier_wait(empty + at.stage, at.parity ^ 1);
          const uint32_t bytes = chunk % 2 == 0 ? B::kFirstBytes : P::kGateUpBytes;
          barrier_arrive_expect(full + at.stage, bytes);
          bulk_load(ring + at.stage * B::kStageBytes, from, bytes, full + at.stage);
          from += bytes;
        }
      }
    }
  } else {
    registers_increase<240>();
    constexpr int kBlocks = P::kColumns / 8;
    const int length = static_cast<int>(p.length);
    const int row = lane / 4;
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
      float g[kChunk], da[kChunk];
      uint32_t dg[2][2 * kChunk / 16][4];

      const auto start_gate_up = [&](int stage) {
        const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * B::kStageBytes;
        registers_fence(g);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<2 * kChunk, kInput>::registers(g, h_t[s],
                                             descriptor_core(tile + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
        }
      };
      const auto start_down = [&](int stage) {
        const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * B::kStageBytes + P::kGateUpBytes;
        registers_fence(da);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<2 * kChunk, kInput>::registers(da, dv[s],
                                             descriptor_core(tile + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
        }
      };
      const auto start_dh = [&](const uint32_t(&a)[2 * kChunk / 16][4], int stage, bool accumulate) {
        // The chunk's gate_up core matrices once more, now with the hidden units as the inner dimension.
        const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * B::kStageBytes;
        registers_fence(dh);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 2 * kChunk / 16; ++s) {
          Mma<P::kColumns, kInput>::template registers<Major::mn>(
              dh, a[s], descriptor_core(tile + s * 256, 128, 2 * kChunk * 16), accumulate || s > 0);
        }
        wgmma_commit();
      };
      // Of the first or second chunk of a pair.
      const auto differentiate = [&](auto which, uint32_t(&out)[2 * kChunk / 16][4]) {
        constexpr int kFirst = decltype(which)::value * kChunk / 2;
#pragma unroll
        for (int i = 0; i < kChunk / 4; ++i) {
          const HiddenGradient r =
              hidden_gradient<kInput>(g[2 * i], g[2 * i + 1], g[kChunk / 2 + 2 * i], g[kChunk / 2 + 2 * i + 1],
                                      da[kFirst + 2 * i], da[kFirst + 2 * i + 1]);
          // dh reads the packed gate weights too, so where these are halved the gradient is doubled.
          constexpr float kScale = 1.0f / kGateScale<kInput>;
          out[i / 4][i % 4] = pack_pair<kInput>(kScale * r.gate[0], kScale * r.gate[1]);
          out[kChunk / 16 + i / 4][i % 4] = pack_pair<kInput>(r.up[0], r.up[1]);
        }
      };

      // The next chunk's products run beside this chunk's share of dh, and that beside the next derivative. The number
      // of chunks is even.
      constexpr std::integral_constant<int, 0> kEven;
      constexpr std::integral_constant<int, 1> kOdd;
      barrier_wait(full + at.stage, at.parity);
      start_gate_up(at.stage);
      start_down(at.stage);
      wgmma_commit();
      int stage = at.stage;
      at.advance();
      wgmma_wait<0>();
      registers_fence(g);
      registers_fence(da);
      differentiate(kEven, dg[0]);
      const auto step = [&](auto next, bool accumulate) {
        constexpr int kNext = decltype(next)::value;
        barrier_wait(full + at.stage, at.parity);
        start_gate_up(at.stage);
        if constexpr (kNext == 0) start_down(at.stage);
        wgmma_commit();
        start_dh(dg[1 - kNext], stage, accumulate);
        wgmma_wait<1>();
        registers_fence(g);
        if constexpr (kNext == 0) registers_fence(da);
        differentiate(next, dg[kNext]);
        registers_fence(dg[kNext]);
        wgmma_wait<0>();
        registers_fence(dh);
        release(stage);
        stage = at.stage;
        at.advance();
      };
      step(kOdd, false);
      for (int chunk = 2; chunk < chunks; chunk += 2) {
        step(kEven, true);
        step(kOdd, true);
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
  static constexpr int kSlice = 2 * kChunk;  // hidden units of a block
  // The sums of more columns need two warpgroups.
  static constexpr int kSumGroups = P::kColumns <= 104 ? 1 : 2;
  static constexpr int kMakeGroups = 3 - kSumGroups;
  static constexpr uint32_t kWeightBytes = Backward<P>::kPairBytes;
  static constexpr uint32_t kUnitBytes = 2 * Backward<P>::kImageBytes;
  // dG and a of a unit: three kinds of eight times 8 hidden units, each eight core matrices of 8 channels and a shift
  // against bank conflicts.
  static constexpr uint32_t kOctetBytes = kUnitChannels / 8 * 128 + 32;
  static constexpr uint32_t kKindBytes = kSlice / 8 * kOctetBytes;
  static constexpr uint32_t kRowsBytes = 3 * kKindBytes;
  static constexpr uint32_t kUnitsAt = kWeightBytes + kMakeGroups * kRowsBytes;
  static constexpr int kStages = (kSharedLimit - kUnitsAt) / kUnitBytes;
  static constexpr uint32_t kBarriersAt = kUnitsAt + kStages * kUnitBytes;
  // The barriers, in as much room as a read of padded positions beyond the last unit passes over.
  static constexpr uint32_t kBytes = kBarriersAt + 256;
};

template <class P, Input kInput>
__global__ void __launch_bounds__(512, 1) mix_weight_gradient(MlpMixBackward p, int units) {
#if HRM_SM90A
  using B = Backward<P>;
  using W = WeightGradient<P>;
  constexpr int kStages = W::kStages;
  constexpr int kMakeGroups = W::kMakeGroups, kSumGroups = W::kSumGroups;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t weights = shared_address(shared);
  const uint32_t rows = weights + W::kWeightBytes;
  const uint32_t images = weights + W::kUnitsAt;
  auto* const full = reinterpret_cast<uint64_t*>(shared + W::kBarriersAt);  // a unit has come
  uint64_t* const empty = full + kStages;
  uint64_t* const made = empty + kStages;  // a unit's dG and a are in `rows`
  uint64_t* const summed = made + kMakeGroups;
  uint64_t* const weights_full = summed + kMakeGroups;
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int warpgroup = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y);
  const int inner = static_cast<int>(p.inner);

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, (1 + kSumGroups) * 4);  // the warps that make the unit's rows, and those that sum them
    }
    for (int i = 0; i < kMakeGroups; ++i) {
      barrier_init(made + i, 4);
      barrier_init(summed + i, kSumGroups * 4);
    }
    barrier_init(weights_full, 1);
    barrier_init_fence();
  }
  __syncthreads();

  if (warpgroup == 3) {
    registers_decrease<24>();
    if (warp == 12 && lane == 0) {
      barrier_arrive_expect(weights_full, W::kWeightBytes);
      bulk_load(shared, static_cast<const unsigned char*>(p.packed) + int64_t{slice} * W::kWeightBytes, W::kWeightBytes,
                weights_full);
      RingPosition<kStages> at;
      for (int unit = split; unit < units; unit += kSplits, at.advance()) {
        barrier_wait(empty + at.stage, at.parity ^ 1);
        barrier_arrive_expect(full + at.stage, W::kUnitBytes);
        bulk_load(shared + W::kUnitsAt + at.stage * W::kUnitBytes,
                  static_cast<const unsigned char*>(p.images) + int64_t{unit} * W::kUnitBytes, W::kUnitBytes,
                  full + at.stage);
      }
    }
  } else if (warpgroup < kMakeGroups) {
    registers_increase<152>();
    const int slab = warp % 4;
    // Row lane / 4 of the core matrix (8 hidden units of this quad) x (8 channels).
    const uint32_t rows_to = rows + warpgroup * W::kRowsBytes + lane % 4 * W::kOctetBytes + slab * 256 + lane / 4 * 16;
    barrier_wait(weights_full, 0);
    RingPosition<kStages> at;
    at.advance(warpgroup);
    uint32_t parity = 1;
    for (int unit = split + warpgroup * kSplits; unit < units;
         unit += kMakeGroups * kSplits, at.advance(kMakeGroups), parity ^= 1) {
      barrier_wait(full + at.stage, at.parity);
      const uint32_t image = images + at.stage * W::kUnitBytes;
      uint32_t h_t[P::kSteps][4], dv[P::kSteps][4];
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        const uint32_t from =
            image + ((slab * 2 + lane / 8 % 2) * P::kColumns + 16 * s + lane / 16 * 8 + lane % 8) * 16;
        load_matrices_transposed(h_t[s], from);
        load_matrices_transposed(dv[s], from + B::kImageBytes);
      }
      if constexpr (P::kSteps * 16 > P::kColumns) {  // beyond the columns stands something else
        h_t[P::kSteps - 1][2] = h_t[P::kSteps - 1][3] = 0;
        dv[P::kSteps - 1][2] = dv[P::kSteps - 1][3] = 0;
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + at.stage);

      float g[kChunk], da[kChunk];
      registers_fence(da);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        Mma<2 * kChunk, kInput>::registers(
            da, dv[s], descriptor_core(weights + P::kGateUpBytes + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
      }
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint32_t gate_up = weights + chunk * B::kFirstBytes;
        registers_fence(g);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          Mma<2 * kChunk, kInput>::registers(
              g, h_t[s], descriptor_core(gate_up + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        registers_fence(g);
        registers_fence(da);
        if (chunk == 0) barrier_wait(summed + warpgroup, parity);
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // channels lane / 4 and 8 more
          uint32_t gate[4], up[4], act[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int n = 4 * j + 2 * i;
            const int a = chunk * kChunk / 2 + n;
            const HiddenGradient r =
                hidden_gradient<kInput>(g[n], g[n + 1], g[kChunk / 2 + n], g[kChunk / 2 + n + 1], da[a], da[a + 1]);
            gate[j] = pack_pair<kInput>(r.gate[0], r.gate[1]);
            up[j] = pack_pair<kInput>(r.up[0], r.up[1]);
            act[j] = pack_pair<kInput>(r.act[0], r.act[1]);
          }
          const uint32_t to = rows_to + chunk * 4 * W::kOctetBytes + i * 128;
          store_shared_16(to, gate);
          store_shared_16(to + W::kKindBytes, up);
          store_shared_16(to + 2 * W::kKindBytes, act);
        }
      }
      fence_async_shared();
      __syncwarp();
      if (lane == 0) barrier_arrive(made + warpgroup);
    }
  } else {
    registers_increase<kSumGroups == 1 ? 184 : 168>();
    // Of the three tiles of 64 rows (gate, up, a), every kSumGroups-th.
    const int group = kSumGroups == 1 ? 0 : warpgroup - kMakeGroups;
    constexpr int kTiles = (3 + kSumGroups - 1) / kSumGroups;
    float sum[kTiles][P::kColumns / 2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < P::kColumns / 2; ++i) sum[t][i] = 0;
    }
    RingPosition<kStages> at;
    RingPosition<kMakeGroups> from;
    int stage_before = 0, from_before = 0;
    const auto release = [&] {
      if (lane == 0) {
        barrier_arrive(empty + stage_before);
        barrier_arrive(summed + from_before);
      }
    };
    for (int unit = split; unit < units; unit += kSplits, at.advance(), from.advance()) {
      barrier_wait(full + at.stage, at.parity);
      barrier_wait(made + from.stage, from.parity);
      const uint32_t a = rows + from.stage * W::kRowsBytes;
      const uint32_t b = images + at.stage * W::kUnitBytes;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) registers_fence(sum[t]);
      wgmma_fence();
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int tile = t * kSumGroups + group;
        if (tile >= 3) continue;
#pragma unroll
        for (int s = 0; s < kUnitChannels / 16; ++s) {
          Mma<P::kColumns, kInput>::template shared<Major::mn, Major::k>(
              sum[t], descriptor_core(a + tile * W::kKindBytes + s * 256, 128, W::kOctetBytes),
              descriptor_core(b + (tile == 2 ? B::kImageBytes : 0) + s * 2 * P::kColumns * 16, P::kColumns * 16, 128),
              true);
        }
      }
      wgmma_commit();
      if constexpr (kMakeGroups > 1) {  // this unit's products run beside the wait for the next one
        wgmma_wait<1>();
        if (unit != split) release();
      }
      stage_before = at.stage;
      from_before = from.stage;
      if constexpr (kMakeGroups == 1) {
        wgmma_wait<0>();
        release();
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) registers_fence(sum[t]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int tile = t * kSumGroups + group;
      if (tile >= 3) continue;
      float* const to =
          p.partial + (int64_t{split} * 3 * inner + int64_t{tile} * inner + slice * W::kSlice) * P::kColumns;
#pragma unroll
      for (int j = 0; j < P::kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = warp % 4 * 16 + lane / 4 + 8 * i;
          *reinterpret_cast<float2*>(to + row * P::kColumns + 8 * j + lane % 4 * 2) = {sum[t][4 * j + 2 * i],
                                                                                       sum[t][4 * j + 2 * i + 1]};
        }
      }
    }
  }
#endif
}

__global__ void mix_reduce(MlpMixBackward p, int columns) {
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
  int device = 0, processors = 0;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;

  PackParams pack{};
  pack.gate_up = static_cast<const uint16_t*>(p.weight_gate_up);
  pack.down = static_cast<const uint16_t*>(p.weight_down);
  pack.packed = static_cast<uint16_t*>(p.packed);
  pack.length = static_cast<int>(p.length);
  pack.inner = static_cast<int>(p.inner);
  pack.steps = P::kSteps;
  pack.columns = P::kColumns;
  constexpr unsigned kPackRows = B::kPairBytes / 16;
  pack_weights<kInput>
      <<<dim3((kPackRows + 127) / 128, static_cast<unsigned>(p.inner / (2 * kChunk))), 128, 0, stream>>>(pack);
  if ((error = cudaGetLastError()) != cudaSuccess) return error;

  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const auto slices = static_cast<unsigned>(p.inner / W::kSlice);
  for (int64_t first = 0; first < p.batch; first += p.part) {
    const int samples = static_cast<int>(p.batch - first < p.part ? p.batch - first : p.part);
    const int units = samples * groups;
    const int blocks = (units + kWarpgroups - 1) / kWarpgroups;
    gradient<<<static_cast<unsigned>(blocks < processors ? blocks : processors), (kWarpgroups + 1) * 128, B::kBytes,
               stream>>>(p, static_cast<int>(first), samples);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
    weight_gradient<<<dim3(slices, kSplits), 512, W::kBytes, stream>>>(p, units);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
    mix_reduce<<<static_cast<unsigned>(3 * p.inner), 128, 0, stream>>>(p, P::kColumns);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
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
  return {inner / (2 * kChunk) * Backward<P>::kPairBytes, units * 2 * Backward<P>::kImageBytes,
          3 * inner * P::kColumns * kSplits * 4};
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
