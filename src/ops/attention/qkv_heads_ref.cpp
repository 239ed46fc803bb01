// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/accumulate_type.h"

namespace hrm::ops::reference {
namespace {

// Heads of the projection's rows, from `first` on: (B, T, count, hd).
at::Tensor heads_of(const at::Tensor& qkv, int64_t first, int64_t count, int64_t head_dim) {
  return qkv.narrow(-1, first * head_dim, count * head_dim).unflatten(-1, {count, head_dim});
}

// x: (B, T, H, hd), in the wide dtype. The tables' rows: (T or B, ..., hd / 2).
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double sign) {
  if (!cos.defined()) return x;
  const int64_t half = x.size(-1) / 2;
  const auto rows = [&](const at::Tensor& table) {
    return table.dim() == 2 ? table.unsqueeze(1) : table.view({table.size(0), 1, 1, half});
  };
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half), c = rows(cos), s = rows(sin) * sign;
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

struct HeadGradient {
  at::Tensor x, weight;
};

// For q or k: heads (B, T, H, hd) before the norm, and the gradient of the rotated heads.
HeadGradient through_norm(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor h = to_accumulate_type(x), rstd = at::rsqrt(h.square().mean(-1, /*keepdim=*/true) + eps),
                   n = h * rstd;
  const at::Tensor g = grad * weight;
  return {(g - n * (g * n).mean(-1, /*keepdim=*/true)) * rstd, (grad * n).reshape({-1, weight.size(0)}).sum(0)};
}

}  // namespace

void qkv_heads_rotate_(const at::Tensor& qkv, const QkvSizes& s, const at::Tensor& cos, const at::Tensor& sin) {
  const at::NoGradGuard no_grad;
  const at::Tensor qk = heads_of(qkv, 0, s.heads + s.kv_heads, s.head_dim);
  qk.copy_(rotated(to_accumulate_type(qk), cos, sin, 1));
}

at::Tensor qkv_heads_norm(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o) {
  const auto part = [&](int64_t first, int64_t count, const at::Tensor& weight) {
    const at::Tensor x = to_accumulate_type(heads_of(qkv, first, count, s.head_dim));
    const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + o.eps) * weight;
    return rotated(normed, o.cos, o.sin, 1).to(qkv.scalar_type());
  };
  return at::cat({part(0, s.heads, o.q_weight), part(s.heads, s.kv_heads, o.k_weight)}, 2);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                                                  const at::Tensor& grad_v, const at::Tensor& qkv,
                                                                  const QkvHeadOptions& o, bool needs_weights) {
  const int64_t heads = grad_q.size(2), kv_heads = grad_k.size(2), head_dim = grad_q.size(3);
  HeadGradient q{rotated(to_accumulate_type(grad_q), o.cos, o.sin, -1), {}},
      k{rotated(to_accumulate_type(grad_k), o.cos, o.sin, -1), {}};
  if (o.q_weight.defined()) {
    q = through_norm(q.x, heads_of(qkv, 0, heads, head_dim), o.q_weight, o.eps);
    k = through_norm(k.x, heads_of(qkv, heads, kv_heads, head_dim), o.k_weight, o.eps);
  }
  const at::Tensor grad = at::cat({q.x, k.x, to_accumulate_type(grad_v)}, 2).flatten(2).to(grad_q.scalar_type());
  if (!needs_weights) return {grad, at::Tensor(), at::Tensor()};
  return {grad, q.weight, k.weight};
}

}  // namespace hrm::ops::reference
