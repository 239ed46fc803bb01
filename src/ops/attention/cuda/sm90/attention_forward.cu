#include "ops/attention/cuda/sm90/attention_forward.cuh"

#include <algorithm>

#include "ops/attention/cuda/sm90/attention.h"
#include "ops/cuda/sm90/launch.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

template <typename T, int kN, bool k8>
cudaError_t start_attention(const AttentionForward& p, cudaStream_t stream) {
  using Shape = AttentionForwardShape<kN>;
  CUtensorMap qk_map, v_map;
  cudaError_t error = encode_heads(qk_map, p.qkv, p.batch, p.length, 3 * 64 * p.heads, kN);
  if (error == cudaSuccess) {
    error = encode_heads(v_map, p.qkv, p.batch, p.length, 3 * 64 * p.heads, Shape::kKeyTiles * 16);
  }
  if (error != cudaSuccess) return error;
  const int items = static_cast<int>(p.batch * p.heads);
  return start(attention_forward_kernel<T, kN, k8>, std::min(items, multiprocessors()), Shape::kThreads, Shape::kBytes,
               1, stream, qk_map, v_map, p, items);
}

template <typename T, bool k8>
cudaError_t start_by_length(const AttentionForward& p, cudaStream_t stream) {
  if (p.length <= 64) return start_attention<T, 64, k8>(p, stream);
  if (p.length <= 88) return start_attention<T, 88, k8>(p, stream);
  if (p.length <= 104) return start_attention<T, 104, k8>(p, stream);
  return start_attention<T, 128, k8>(p, stream);
}

}  // namespace

bool fits(const AttentionForward& p) {
  return is_hopper() && p.head_dim == 64 && p.length >= 1 && p.length <= kAttentionMaxLength && p.batch >= 1 &&
         p.batch * p.heads <= INT32_MAX / 2 && p.element != Element::f32;
}

cudaError_t launch(const AttentionForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.out_slot != nullptr) {
    return p.element == Element::f16 ? start_by_length<__half, true>(p, stream)
                                     : start_by_length<__nv_bfloat16, true>(p, stream);
  }
  return p.element == Element::f16 ? start_by_length<__half, false>(p, stream)
                                   : start_by_length<__nv_bfloat16, false>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
