#pragma once
// The SwiGLU of memory_blocks.cuh.

#include "ops/linear/cuda/sm90/swiglu_registers.cuh"
#include "ops/memory/cuda/sm90/memory_blocks_worker.cuh"

namespace hrm::ops::cuda::sm90 {

// The rank's 192 columns of act = silu(gate) * up, into the place of q, k and v; each side has 96 of them.
template <Input kInput, class Shape>
__device__ inline void MemoryWorker<kInput, Shape>::gate(const MemoryBlock& block, int step) {
  // Columns of gate and up in the order of tiles: gate 0 to 95, up 0 to 95.
  float d[3][32];
#pragma unroll
  for (int part = 0; part < 3; ++part) start_at_zero(d[part]);
  for_chunks(x0(0), x0_ready(), parity_x0_, [&](const uint32_t(&a)[4][4]) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      use_tile([&](const unsigned char* tile) { multiply_chunk<kInput, 64>(d[part], a, tile); });
    }
  });
  float factor[2];
  row_factors(factor);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    registers_fence(d[part]);
    scale_rows(d[part], factor);
  }
  if (block.saved_gate_up != nullptr) {
    const int column = Shape::kOwnInner * rank_ + 96 * side_;
#pragma unroll
    for (int group = 0; group < 6; ++group) {
      float columns[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) columns[k] = d[group / 2][16 * (group % 2) + k];
      save(block.saved_gate_up, step, 2 * Shape::kInner, (group < 3 ? 0 : Shape::kInner) + column + 32 * (group % 3),
           columns);
    }
  }
#pragma unroll
  for (int group = 0; group < 3; ++group) {  // of 32 columns
    const Place at = place();
    const int to = 3 * side_ + group;
#pragma unroll
    for (int k = 0; k < 16; k += 2) {
      const float* const gate = d[group / 2] + 16 * (group % 2) + k;
      const float* const up = d[(group + 3) / 2] + 16 * ((group + 3) % 2) + k;
      in_tile(head(to / 2), 4 * (to % 2) + k / 4, k / 2 % 2, at) =
          gated_pair<kInput, false>(round_pair<kInput>(gate[0], gate[1]), round_pair<kInput>(up[0], up[1]));
    }
  }
  all_workers();
}

// h += act * down^T. This rank's 192 of K make parts of all columns.
template <Input kInput, class Shape>
__device__ inline void MemoryWorker<kInput, Shape>::feed_down(float (&h)[16]) {
  if (warp_ == 0 && fresh_lane() == 0) barrier_arrive_expect(parts_ready(), (kRanks - 1) * kTile);
  // Of a part: [columns / 16][thread of the warpgroup], 8 elements each.
  const int own = (32 * (warp_ % 4) + fresh_lane()) * 16;
  for (int turn = 0; turn < kRanks / kDownOwners / 2; ++turn) {
    float d[kDownOwners][32];
#pragma unroll
    for (int i = 0; i < kDownOwners; ++i) start_at_zero(d[i]);
    uint32_t a[2][4][4];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      load_rows(a[k % 2], head(k), warp_);
#pragma unroll
      for (int i = 0; i < kDownOwners; ++i) {
        use_tile([&](const unsigned char* tile) { multiply_chunk<kInput, 64>(d[i], a[k % 2], tile); });
      }
    }
    end_products();
#pragma unroll
    for (int i = 0; i < kDownOwners; ++i) {
      registers_fence(d[i]);
      const int owner = down_owner<kRanks>(turn, side_, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const from = d[i] + 8 * j;
        const uint4 pairs = {round_pair<kInput>(from[0], from[1]), round_pair<kInput>(from[2], from[3]),
                             round_pair<kInput>(from[4], from[5]), round_pair<kInput>(from[6], from[7])};
        unsigned char* const to = x1(rank_) + own + 2048 * j;
        if (owner == rank_) {
          *reinterpret_cast<uint4*>(to) = pairs;
        } else {
          store_16_remote(to, parts_ready(), static_cast<uint32_t>(owner), pairs);
        }
      }
    }
  }
  all_workers();
  barrier_wait_cluster(parts_ready(), parity_parts_);
  parity_parts_ ^= 1;
  float sum[16] = {};
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 part = *reinterpret_cast<const uint4*>(x1(rank) + own + 2048 * (2 * side_ + j));
      const uint32_t pairs[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 both = widen_pair<kInput>(pairs[k]);
        sum[8 * j + 2 * k] += both.x;
        sum[8 * j + 2 * k + 1] += both.y;
      }
    }
  }
  add_rounded(h, sum);
}

}  // namespace hrm::ops::cuda::sm90
