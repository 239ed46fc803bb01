#include "ops/attention/cuda/sm90/attention_backward.cuh"

#include <algorithm>
#include <type_traits>

#include "ops/attention/cuda/sm90/attention.h"
#include "ops/attention/cuda/sm90/attention_backward_pairs.cuh"
#include "ops/cuda/sm90/launch.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

// Chosen by timing on an H200: the kernel with pairs of warpgroups is faster with 82 and 128 positions and slower with
// 97.
template <int kN>
constexpr bool kInPairs = kN == 88 || kN == 128;

template <typename T, int kN>
cudaError_t start_attention(const AttentionBackward& p, cudaStream_t stream) {
  using Shape = std::conditional_t<kInPairs<kN>, AttentionBackwardPairsShape<kN>, AttentionBackwardShape<kN>>;
  CUtensorMap qkv_map, grad_map;
  cudaError_t error = encode_heads(qkv_map, p.qkv, p.batch, p.length, 3 * 64 * p.heads, Shape::kRows);
  if (error == cudaSuccess) {
    error = encode_heads(grad_map, p.grad_out, p.batch, p.length, 64 * p.heads, Shape::kRows);
  }
  if (error != cudaSuccess) return error;
  const int items = static_cast<int>(p.batch * p.heads);
  if constexpr (kInPairs<kN>) {
    return start(attention_backward_pairs_kernel<T, kN>, std::min(items, multiprocessors()), Shape::kThreads,
                 Shape::kBytes, 1, stream, qkv_map, grad_map, p, items);
  } else {
    return start(attention_backward_kernel<T, kN>, std::min(items, multiprocessors() * Shape::kBlocks), Shape::kThreads,
                 Shape::kBytes, 1, stream, qkv_map, grad_map, p, items);
  }
}

template <typename T>
cudaError_t start_by_length(const AttentionBackward& p, cudaStream_t stream) {
  if (p.length <= 64) return start_attention<T, 64>(p, stream);
  if (p.length <= 88) return start_attention<T, 88>(p, stream);
  if (p.length <= 104) return start_attention<T, 104>(p, stream);
  return start_attention<T, 128>(p, stream);
}

}  // namespace

bool fits(const AttentionBackward& p) {
  return is_hopper() && p.head_dim == 64 && p.length >= 1 && p.length <= kAttentionMaxLength && p.batch >= 1 &&
         p.batch * p.heads <= INT32_MAX / 2 && p.element != Element::f32;
}

cudaError_t launch(const AttentionBackward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_by_length<__half>(p, stream) : start_by_length<__nv_bfloat16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
