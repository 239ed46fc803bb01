#pragma once
// The attention of memory_blocks.cuh: a rank has a head of 64.

#include "ops/memory/cuda/sm90/memory_blocks_worker.cuh"

namespace hrm::ops::cuda::sm90 {

// q, k and v of the head, its attention, and the result to all.
template <Input kInput, class Shape>
__device__ inline void MemoryWorker<kInput, Shape>::attend(const MemoryBlock& block, int step) {
  {
    // Side 0: q and the first half of k; side 1: v and the second half.
    float wide[32], narrow[16];
    start_at_zero(wide);
    start_at_zero(narrow);
    for_chunks(x0(0), x0_ready(), parity_x0_, [&](const uint32_t(&a)[4][4]) {
      use_tile([&](const unsigned char* tile) { multiply_chunk<kInput, 64>(wide, a, tile); });
      use_tile([&](const unsigned char* tile) { multiply_chunk<kInput, 32>(narrow, a, tile); });
    });
    registers_fence(wide);
    registers_fence(narrow);
    float factor[2];
    row_factors(factor);
    scale_rows(wide, factor);
    scale_rows(narrow, factor);
    put(head(2 * side_), 0, wide);
    put(head(1), 4 * side_, narrow);
    save(block.saved_qkv, step, 3 * Shape::kWidth, 2 * side_ * Shape::kWidth + 64 * rank_, wide);
    save(block.saved_qkv, step, 3 * Shape::kWidth, Shape::kWidth + own_columns(), narrow);
  }
  fence_async_shared();
  all_workers();
  if (block.q_norm != nullptr) {
    normalise_head(block);
    fence_async_shared();
    all_workers();
  }
  // Both sides compute all scores, and half of the result each.
  float scores[32];
  start_at_zero(scores);
  wgmma_fence();
  {
    const uint64_t queries = descriptor_k_major(head(0)), keys = descriptor_k_major(head(1));
#pragma unroll
    for (int k = 0; k < 4; ++k) Mma<64, kInput>::shared(scores, queries + 2 * k, keys + 2 * k, true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  registers_fence(scores);
  const Place at = place();
  if (p_.length < 64) {
    const int memory[2] = {at.row / p_.length, (at.row + 8) / p_.length};
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      if ((8 * (k / 4) + 2 * at.q + k % 2) / p_.length != memory[k / 2 % 2]) scores[k] = -INFINITY;
    }
  }
  constexpr float kScale = 0.125f;  // 1 / sqrt(64)
  float total[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * j + 2 * i + e];
        score = exp2f((score - largest) * (kScale * kLog2e));
        sum += score;
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    total[i] = 1 / sum;
    const int v = vector(at, i);
    if (block.saved_lse != nullptr && v >= 0 && at.q == 0 && side_ == 0) {
      block.saved_lse[((step * p_.batch + v / p_.length) * kRanks + rank_) * p_.length + v % p_.length] =
          largest * kScale + logf(sum);
    }
  }
  uint32_t weights[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      weights[k][part] = round_pair<kInput>(scores[8 * k + 2 * part], scores[8 * k + 2 * part + 1]);
    }
  }
  float mixed[16];
  start_at_zero(mixed);
  const uint64_t values = descriptor_mn_major(head(2), kTile) + 4 * side_;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Mma<32, kInput>::template registers<Major::mn>(mixed, weights[k], values + 128 * k, true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  registers_fence(mixed);
  scale_rows(mixed, total);
  put(x1(rank_), 4 * side_, mixed);
  save(block.saved_mixed, step, Shape::kWidth, own_columns(), mixed);
  send(x1_ready(), x1(rank_), false);
}

// RMSNorm of each row of q and k, 64 elements; two threads to a row.
template <Input kInput, class Shape>
__device__ inline void MemoryWorker<kInput, Shape>::normalise_head(const MemoryBlock& block) const {
  const int thread = 32 * warp_ + fresh_lane(), row = thread / 2 % 64, half = thread % 2;
  const float* const weight = (side_ == 0 ? block.q_norm : block.k_norm) + 32 * half;
  unsigned char* const from = head(side_) + row * 128;
  uint4 data[4];
  float squares = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    data[c] = *reinterpret_cast<const uint4*>(from + (((4 * half + c) ^ row % 8) << 4));
    const uint32_t pairs[4] = {data[c].x, data[c].y, data[c].z, data[c].w};
#pragma unroll
    for (const uint32_t pair : pairs) {
      const float2 v = widen_pair<kInput>(pair);
      squares = fmaf(v.x, v.x, fmaf(v.y, v.y, squares));
    }
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  const float factor = rsqrtf(squares / 64 + p_.eps);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t pairs[4] = {data[c].x, data[c].y, data[c].z, data[c].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 v = widen_pair<kInput>(pairs[k]);
      const float2 by = __ldg(reinterpret_cast<const float2*>(weight + 8 * c + 2 * k));
      pairs[k] = round_pair<kInput>(v.x * factor * by.x, v.y * factor * by.y);
    }
    *reinterpret_cast<uint4*>(from + (((4 * half + c) ^ row % 8) << 4)) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

}  // namespace hrm::ops::cuda::sm90
