#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"
#include "ops/linear/cuda/e4m3_pairs.h"

namespace hrm::ops::cuda {

// Pointers but those of tables and weights are aligned to 16 bytes; strides, in elements, are multiples of 16 bytes.
// The (S, hd) of a row and head are contiguous.
struct DecodeAttention {
  const void* qkv;  // contiguous rows of (heads + 2 kv_heads) head_dim
  void* keys;
  void* values;
  void* out;  // contiguous rows of heads head_dim
  const int64_t* lengths;
  const float* cos;
  const float* sin;
  E4m3Pairs pairs;        // of `out`, if makes_pairs(); null values: not wanted
  const float* q_weight;  // or null, as k_weight
  const float* k_weight;
  int64_t rows, heads, kv_heads, head_dim;
  int64_t key_row, key_head, value_row, value_head;  // strides
  int64_t window;                                    // 0: none
  int64_t places;                                    // S: position p is at place p mod S
  float eps;
  bool steady;  // the kernel queued before does not write lengths and caches: they are read while that one still runs
  Element element;
};

// Head sizes that the kernel is made for.
constexpr bool decode_attention_fits(int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128;
}
// Whether the kernel makes pairs that a product with a weight in e4m3 takes (ops/linear/cuda/sm90/skinny_gemm_tiles.h).
bool makes_pairs(const DecodeAttention& params);
// Starts the kernel on the stream and returns the error of the launch.
cudaError_t launch(const DecodeAttention& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
