// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/decode/decode_attention_impl.h"

namespace hrm::ops::reference {
namespace {

at::Tensor normed(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  if (!weight) return x;
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps) * *weight).to(x.scalar_type());
}

// x (B, H, hd) by the rows (B, 1, hd / 2) of the tables; the products are float32, whatever the type of x.
at::Tensor rotated_row(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({at::mul(a, cos).addcmul_(b, sin, -1), at::mul(b, cos).addcmul_(a, sin)}, -1).to(x.scalar_type());
}

}  // namespace

at::Tensor decode_attention_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& lengths, const at::Tensor& cos, const at::Tensor& sin,
                             const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                             double eps, int64_t window) {
  const int64_t hd = keys.size(3), kv_heads = keys.size(1), heads = qkv.size(1) / hd - 2 * kv_heads;
  if (qkv.size(0) == 0) return at::empty({0, heads * hd}, qkv.options());  // ATen's attention gives none on a GPU
  const auto parts = qkv.unflatten(1, {heads + 2 * kv_heads, hd}).split_with_sizes({heads, kv_heads, kv_heads}, 1);
  const auto rows = [&](const at::Tensor& table) { return table.index_select(0, lengths).unsqueeze(1); };
  const at::Tensor q = rotated_row(normed(parts[0], q_weight, eps), rows(cos), rows(sin));
  const at::Tensor k = rotated_row(normed(parts[1], k_weight, eps), rows(cos), rows(sin));
  const int64_t S = keys.size(2), share = heads / kv_heads;
  const at::Tensor place = lengths.remainder(S).view({-1, 1, 1, 1}).expand({-1, kv_heads, 1, hd});
  at::Tensor(keys).scatter_(2, place, k.unsqueeze(2));
  at::Tensor(values).scatter_(2, place, parts[2].unsqueeze(2));

  // How far back the position is that a place of the cache holds: the last one that was written there.
  const at::Tensor back = (lengths.unsqueeze(1) - at::arange(S, lengths.options())).remainder(S);
  at::Tensor seen = back.le(lengths.unsqueeze(1));  // (B, S)
  if (window > 0) seen = seen.logical_and(back.lt(window));
  // The queries of a group are rows for its keys and values, which are thus not repeated.
  const at::Tensor mixed =
      at::scaled_dot_product_attention(q.unflatten(1, {kv_heads, share}), keys, values, seen.unsqueeze(1).unsqueeze(1));
  return mixed.reshape({qkv.size(0), heads * hd});
}

}  // namespace hrm::ops::reference
