#pragma once
// Attention over short sequences on the CPU.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops::cpu {

// softmax(q k^T / sqrt(head_dim)) v of qkv (B, L, 3 * heads * head_dim), contiguous float32, q and k rotated already,
// as (B, L, heads * head_dim). For a few hundred positions: a head's keys and values should fit into the cache of a
// core.
at::Tensor attention(const at::Tensor& qkv, int64_t heads);

}  // namespace hrm::ops::cpu
