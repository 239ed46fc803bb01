#pragma once
// Attention over short sequences on the CPU.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops::cpu {

// softmax(q k^T / sqrt(head_dim)) v. qkv: (B, L, 3 * heads * head_dim), contiguous float32, with q and k already
// rotated. Returns (B, L, heads * head_dim). For a few hundred positions: a head's keys and values should fit into a
// core's cache.
at::Tensor attention(const at::Tensor& qkv, int64_t heads);

}  // namespace hrm::ops::cpu
