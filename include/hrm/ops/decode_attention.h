#pragma once
// The attention of one decoding step: from a row of a qkv projection to the attention output. Heads of q and k are
// normalised (as in Qwen3) and rotated by their position (Su et al., "RoFormer", arXiv 2104.09864, with the halves
// paired as in GPT-NeoX). k and v are appended to the cache, and q attends to the row's part of the cache. A row's
// result depends neither on other rows nor on the size of the cache.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/ops/paired_rows.h"

namespace hrm::ops {

// B rows, Hq query heads, Hkv key and value heads (Hkv divides Hq), hd elements per head, S cache positions.
struct DecodeAttentionOptions {
  at::Tensor cos, sin;                                     // (positions, hd / 2) float32, contiguous
  std::optional<at::Tensor> q_weight = {}, k_weight = {};  // (hd) float32, both or none: RMSNorm of each head
  double eps = 1e-6;
  int64_t window = 0;  // the new position sees itself and the window - 1 positions before it; 0: all of them
  // Promise: the kernel queued directly before this one writes neither lengths nor caches, e.g. it is the product that
  // computes qkv. They are then read while that kernel still runs.
  bool steady = false;
};

//   qkv: (B, (Hq + 2 Hkv) hd): all heads of q, then of k, then of v. float32, bfloat16 or float16 (float64 for tests).
//   keys, values: (B, Hkv, S, hd) of qkv's dtype, written at `lengths`. Any strides of rows and heads; (S, hd)
//     contiguous.
//   lengths: (B) int64, the positions that each row has already had. Position p is at place p mod S of the cache. With
//     a window of at most S the cache is a ring: lengths may exceed S. Otherwise they are < S (unchecked on a GPU).
//   Returns (B, Hq hd).
//
// Norm, rotation and attention are computed in float32. q and k are rounded after the norm and after the rotation, the
// result once.
//
// No gradient. Deterministic. Runs on the current stream; can be captured, because lengths are read only on the device.
// On a GPU, one kernel for hd 32, 64 and 128, with a block per row and head; otherwise plain ATen. Throws c10::Error
// that names the shapes.
at::Tensor decode_attention_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& lengths, const DecodeAttentionOptions& options);

// The same, with the result in pairs where a kernel makes them: on Hopper, for up to 48 bfloat16 rows with hd 32, 64 or
// 128 and Hq / Hkv at most 8. Hq * hd must be a multiple of 128, and (Hq / Hkv) * hd of 64.
PairedRows decode_attention_paired_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                                    const at::Tensor& lengths, const DecodeAttentionOptions& options);

}  // namespace hrm::ops
