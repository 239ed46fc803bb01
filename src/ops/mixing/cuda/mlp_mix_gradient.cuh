#pragma once
// The gradient of h. As in the forward kernel, a warpgroup owns a unit, whose h^T and gradient of v stay in registers
// (dv comes from y and rstd; a sum along a row of the tile):
//
//   G (64 d x 64)    = h^T @ gate_up chunk        again, as in the forward pass
//   da (64 d x 32 f) = dv^T @ down chunk
//   dG               = derivative of silu(gate) * up    in registers
//   dh (64 d x l)   += dG @ gate_up chunk; at last + dv
//
// dG, a, h and dv go to memory, as entries and images (mlp_mix_backward.cuh). The same code runs in mix_gradient, which
// has room for all of a part's, and in mix_fused, where it waits for a slot before it writes, and says what it wrote.

#include <type_traits>

#include "ops/mixing/cuda/mlp_mix_backward.cuh"

namespace hrm::ops::cuda::mix {

// Shared memory of a block.
template <class P>
struct Gradient {
  static constexpr uint32_t kDownTransposedBytes = P::kSteps * 16 * 2 * kChunk;
  static constexpr uint32_t kChunkBytes = P::kGateUpBytes + kDownTransposedBytes;
  static constexpr uint32_t kTileBytes = P::kSteps * 16 * 32;
  static constexpr uint32_t kTilesBytes = kWarpgroups * 4 * 4 * kTileBytes;  // h, grad_y, y and out of each warp
  static constexpr int kStages = (kSharedLimit - kTilesBytes) / kChunkBytes;
  static constexpr uint32_t kBarriersAt = kTilesBytes + kStages * kChunkBytes;
  static constexpr uint32_t kBytes = kBarriersAt + 2 * kStages * 8 + 4 * kWarpgroups * 8;
  static_assert(kStages >= 3 && 2 * kStages * 8 + 4 * kWarpgroups * 8 <= 256);
};

// What a block for the gradient of h goes by.
struct GradientView {
  unsigned char* ring;
  unsigned char* tiles;
  uint64_t* full;
  uint64_t* empty;
  // Fused only: per warpgroup two barriers each, used in turn.
  uint64_t* may_write;
  uint64_t* written;
  int first, stride, units, first_sample;  // the block's first unit, units of a round (of all warpgroups), all units
};

// silu and its slope; of bf16 twice the slope, since the weights of gates, which the slope meets next, are halved.
struct Slope {
  float silu[2];
  float slope[2];
};
template <Input kInput>
__device__ inline Slope slope(float g, float h) {
  if constexpr (kInput == Input::bf16) {
    float t, u;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(g));
    asm("tanh.approx.f32 %0, %1;" : "=f"(u) : "f"(h));
    const float a = fmaf(g, t, g), b = fmaf(h, u, h);
    const float s = 1.0f + t, r = 1.0f + u;  // twice the sigmoid
    return {{a, b}, {fmaf(a, 2.0f - s, s), fmaf(b, 2.0f - r, r)}};
  } else {
    const Logistic s = logistic<kInput>(g, h);
    return {{s.silu[0], s.silu[1]},
            {fmaf(s.silu[0], 1.0f - s.sigmoid[0], s.sigmoid[0]), fmaf(s.silu[1], 1.0f - s.sigmoid[1], s.sigmoid[1])}};
  }
}

template <class P>
__device__ void start_gradient_barriers(const GradientView& v) {
  for (int i = 0; i < Gradient<P>::kStages; ++i) {
    barrier_init(v.full + i, 1);
    barrier_init(v.empty + i, kWarpgroups * 4);
  }
  for (int i = 0; i < 2 * kWarpgroups; ++i) {
    barrier_init(v.may_write + i, 1);
    barrier_init(v.written + i, 4);
  }
}

template <class P>
__device__ GradientView gradient_view(unsigned char* shared) {
  using B = Gradient<P>;
  GradientView v{};
  v.ring = shared;
  v.tiles = shared + B::kStages * B::kChunkBytes;
  v.full = reinterpret_cast<uint64_t*>(shared + B::kBarriersAt);
  v.empty = v.full + B::kStages;
  v.may_write = v.empty + B::kStages;
  v.written = v.may_write + 2 * kWarpgroups;
  return v;
}

// One thread: brings the weights, chunk after chunk.
template <class P>
__device__ void load_weights(const MlpMixBackward& p, const GradientView& v) {
  using B = Gradient<P>;
  const int chunks = static_cast<int>(p.inner) / kChunk;
  RingPosition<B::kStages> at;
  for (int first = v.first; first < v.units; first += v.stride) {
    for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
      barrier_wait(v.empty + at.stage, at.parity ^ 1);
      barrier_arrive_expect(v.full + at.stage, B::kChunkBytes);
      bulk_load(v.ring + at.stage * B::kChunkBytes,
                static_cast<const unsigned char*>(p.packed) + int64_t{chunk} * B::kChunkBytes, B::kChunkBytes,
                v.full + at.stage);
    }
  }
}

template <class P, Input kInput, bool kFused>
__device__ void gradient_of_units(const MlpMixBackward& p, const GradientView& v, int warp, int lane) {
  using B = Gradient<P>;
  constexpr int kStages = B::kStages;
  const int warpgroup = warp / 4;
  const int chunks = static_cast<int>(p.inner) / kChunk;
  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const int units = v.units, stride = v.stride, first_sample = v.first_sample;
  unsigned char* const ring = v.ring;
  unsigned char* const tiles = v.tiles;
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
    if (lane == 0) barrier_arrive(v.empty + stage);
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

  // Fused: places written, and where the next entries go.
  uint32_t written = 0;
  int gradient_slot = 0, value_slot = 0;
  const auto wait_for_slots = [&] { barrier_wait(v.may_write + warpgroup * 2 + written % 2, written / 2 % 2); };
  RingPosition<kStages> at;
  prefetch(v.first + warpgroup);
  for (int first = v.first; first < units; first += stride) {
    const int unit = first + warpgroup;
    if (unit >= units) {  // the same for the whole warpgroup
      for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
        barrier_wait(v.full + at.stage, at.parity);
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
    int image_at = unit;
    if constexpr (kFused) {
      image_at = unit % (kImageSlots * stride);
      wait_for_slots();
    }
    unsigned char* const image = images + int64_t{image_at} * 2 * kImageBytes<P>;
    write_image(h_tile, image);
    write_image(out_tile, image + kImageBytes<P>);
    __syncwarp();
    prefetch(unit + stride);

    float dh[P::kColumns / 2];
    float g[kChunk], da[kChunk / 2];
    uint32_t dg[2][2 * kChunk / 16][4];
    // Row `row` of the core matrix (8 hidden units of this quad) x (8 channels) of this warp.
    unsigned char* const row_to = rows + (quad * kUnitChannels / 8 + slab * 2) * 128 + row * 16;
    int gradient_entry = 0, value_entry = 0;
    const int writer = v.first + warpgroup;

    const auto start_recompute = [&](int stage) {
      const uint32_t gate_up = ring_address + static_cast<uint32_t>(stage) * B::kChunkBytes;
      const uint32_t down = gate_up + P::kGateUpBytes;
      registers_fence(g);
      registers_fence(da);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        Mma<2 * kChunk, kInput>::registers(g, h_t[s],
                                           descriptor_core(gate_up + s * 4 * kChunk * 16, 2 * kChunk * 16, 128), s > 0);
      }
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        Mma<kChunk, kInput>::registers(da, dv[s], descriptor_core(down + s * 2 * kChunk * 16, kChunk * 16, 128), s > 0);
      }
      wgmma_commit();
    };
    const auto start_dh = [&](const uint32_t(&a)[2 * kChunk / 16][4], int stage, bool accumulate) {
      // The same bytes as in the other product: there K-major, here MN-major.
      const uint32_t tile = ring_address + static_cast<uint32_t>(stage) * B::kChunkBytes;
      registers_fence(dh);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 2 * kChunk / 16; ++s) {
        Mma<P::kColumns, kInput>::template registers<Major::mn>(
            dh, a[s], descriptor_core(tile + s * 256, 128, 2 * kChunk * 16), accumulate || s > 0);
      }
      wgmma_commit();
    };
    // g, da -> dg; a and dg of this chunk to memory.
    const auto differentiate = [&](uint32_t(&out)[2 * kChunk / 16][4], int chunk) {
      uint32_t act[kChunk / 16][4];
#pragma unroll
      for (int i = 0; i < kChunk / 4; ++i) {
        const Slope s = slope<kInput>(g[2 * i], g[2 * i + 1]);
        float a[2], d_gate[2], d_up[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float up = g[kChunk / 2 + 2 * i + e], grad = da[2 * i + e];
          a[e] = s.silu[e] * up;
          d_up[e] = grad * s.silu[e];
          d_gate[e] = grad * up * s.slope[e];
        }
        act[i / 4][i % 4] = pack_pair<kInput>(a[0], a[1]);
        out[i / 4][i % 4] = pack_pair<kInput>(d_gate[0], d_gate[1]);
        out[kChunk / 16 + i / 4][i % 4] = pack_pair<kInput>(d_up[0], d_up[1]);
      }
      if (chunk % kPlaceChunks == 0) {
        const int place = chunk / kPlaceChunks;
        if constexpr (kFused) {
          if (place > 0) wait_for_slots();
          gradient_entry = gradient_slot * stride + writer;
          value_entry = (kGradientSlots + value_slot) * stride + writer;
          gradient_slot = gradient_slot + 1 < kGradientSlots ? gradient_slot + 1 : 0;
          if (place % 2 == 1) value_slot = value_slot + 1 < kValueSlots ? value_slot + 1 : 0;
        } else {
          const int inner = static_cast<int>(p.inner), first_entry = unit * tiles_of(inner);
          gradient_entry = first_entry + place;
          value_entry = first_entry + places_of(inner) + place / 2;
        }
      }
      constexpr int kRowsOfChunk = kChunk * kUnitChannels * 2;
      unsigned char* const to = row_to + int64_t{gradient_entry} * kEntryBytes + chunk % kPlaceChunks * kRowsOfChunk;
      unsigned char* const act_to =
          row_to + int64_t{value_entry} * kEntryBytes + chunk % (2 * kPlaceChunks) * kRowsOfChunk;
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // channels row and row + 8
        *reinterpret_cast<uint4*>(to + i * 128) = {out[0][i], out[0][2 + i], out[1][i], out[1][2 + i]};
        *reinterpret_cast<uint4*>(to + kEntryBytes / 2 + i * 128) = {out[2][i], out[2][2 + i], out[3][i],
                                                                     out[3][2 + i]};
        *reinterpret_cast<uint4*>(act_to + i * 128) = {act[0][i], act[0][2 + i], act[1][i], act[1][2 + i]};
      }
      if constexpr (kFused) {
        if (chunk % kPlaceChunks == kPlaceChunks - 1) {
          __syncwarp();
          if (lane == 0) barrier_arrive(v.written + warpgroup * 2 + written % 2);
          ++written;
        }
      }
    };

    // The next chunk's products run beside this chunk's share of dh, and that beside the next derivative.
    barrier_wait(v.full + at.stage, at.parity);
    start_recompute(at.stage);
    int stage = at.stage;
    at.advance();
    wgmma_wait<0>();
    registers_fence(g);
    registers_fence(da);
    differentiate(dg[0], 0);
    const auto step = [&](auto which, int chunk) {
      constexpr int kThis = decltype(which)::value;
      barrier_wait(v.full + at.stage, at.parity);
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
      store_matrices_transposed(out_tile + tile_offset(8 * (kBlocks - 1) + lane % 8, lane / 8 % 2), out(kBlocks - 1, 0),
                                out(kBlocks - 1, 1));
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

template <class P, Input kInput>
__global__ void __launch_bounds__((kWarpgroups + 1) * 128, 1)
    mix_gradient(MlpMixBackward p, int first_sample, int samples) {
#if HRM_SM90A
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  GradientView v = gradient_view<P>(shared);
  v.first = static_cast<int>(blockIdx.x) * kWarpgroups;
  v.stride = static_cast<int>(gridDim.x) * kWarpgroups;
  v.units = samples * (static_cast<int>(p.width) / kUnitChannels);
  v.first_sample = first_sample;
  if (threadIdx.x == 0) {
    start_gradient_barriers<P>(v);
    barrier_init_fence();
  }
  wait_for_earlier();
  __syncthreads();
  if (warp / 4 == kWarpgroups) {
    registers_decrease<24>();
    if (warp == kWarpgroups * 4 && lane == 0) load_weights<P>(p, v);
  } else {
    registers_increase<240>();
    gradient_of_units<P, kInput, false>(p, v, warp, lane);
  }
#endif
}

}  // namespace hrm::ops::cuda::mix
