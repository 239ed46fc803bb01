#pragma once
// The attention of one decoding step, from a row of a qkv projection to the mixed values. The heads of q and k are
// normalised (as in Qwen3) and rotated by the position (Su et al., "RoFormer", arXiv 2104.09864, halves paired as in
// GPT-NeoX). k and v go into the cache, and q attends to the cache up to the row's length. A row's result depends
// neither on other rows nor on the cache's size.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::ops {

// B rows, Hq query heads, Hkv key heads and as many value heads (a divisor of Hq), hd elements each, S positions in the
// cache.
struct DecodeAttentionOptions {
  at::Tensor cos, sin;                                     // (positions, hd / 2) float32, contiguous
  std::optional<at::Tensor> q_weight = {}, k_weight = {};  // (hd) float32, both or none: RMSNorm of each head
  double eps = 1e-6;
  int64_t window = 0;  // the new position sees itself and window - 1 before it; 0: all before it
  // The kernel that was queued directly before writes neither lengths nor caches, as where a product gave qkv: they are
  // read while it still runs.
  bool steady = false;
};

// qkv (B, (Hq + 2 Hkv) hd): all heads of q, of k, of v. keys, values (B, Hkv, S, hd) of qkv's dtype, written at
// `lengths` (B) int64 < S, the positions that each row holds so far (unchecked on a GPU); any strides of rows and
// heads, (S, hd) contiguous. Returns (B, Hq hd). float32, bfloat16, float16; float64 for tests. Norm, rotation and
// attention in float32; q and k are rounded after each of the first two, the result once.
//
// No gradient. Deterministic; on the current stream; can be captured: reads lengths on the device alone. On a GPU one
// kernel for hd 32, 64 and 128, a block for each row and head; otherwise plain ATen. Throws c10::Error naming the
// shapes.
at::Tensor decode_attention_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& lengths, const DecodeAttentionOptions& options);

}  // namespace hrm::ops
