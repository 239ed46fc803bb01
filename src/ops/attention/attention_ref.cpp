// The readable version, and the oracle of all other implementations.
#include <ATen/ATen.h>

#include <cmath>

#include "ops/attention/attention_impl.h"
#include "ops/common/accumulate_type.h"

namespace hrm::ops::reference {
namespace {

// Rotates `from` by +angle (sign 1) or -angle (sign -1) into `to`, which may be `from`. Both are
// (B, L, n, heads, head_dim).
void turn(const at::Tensor& from, const at::Tensor& to, const at::Tensor& cos, const at::Tensor& sin, double sign) {
  const int64_t half = from.size(-1) / 2;
  const at::Tensor a = from.narrow(-1, 0, half), b = from.narrow(-1, half, half);
  const at::Tensor c = cos.view({-1, 1, 1, half}), s = sin.view({-1, 1, 1, half});
  // The tables are float32, so the products are at least float32 for any type of `from`.
  const at::Tensor first = at::mul(a, c).addcmul_(b, s, -sign);
  const at::Tensor second = at::mul(b, c).addcmul_(a, s, sign);
  to.narrow(-1, 0, half).copy_(first);
  to.narrow(-1, half, half).copy_(second);
}

struct Heads {
  at::Tensor q, k, v;  // (B, heads, L, head_dim), rotated, at least float32
};

Heads rotated_heads(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin) {
  at::Tensor rotated = qkv.contiguous();
  if (cos) {
    rotated = rotated.clone();
    rotate_qkv(rotated, rotated, heads, *cos, *sin);
  }
  const auto [q, k, v] = split_heads(rotated, heads);
  const at::ScalarType acc = accumulate_type(qkv);
  return {q.to(acc), k.to(acc), v.to(acc)};
}

}  // namespace

void rotate_qkv(const at::Tensor& qkv, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                const at::Tensor& sin) {
  const std::vector<int64_t> parts = {qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / (3 * heads)};
  const at::Tensor from_parts = qkv.view(parts), to_parts = to.view(parts);
  turn(from_parts.narrow(2, 0, 2), to_parts.narrow(2, 0, 2), cos, sin, 1);
  if (!to.is_same(qkv)) to_parts.select(2, 2).copy_(from_parts.select(2, 2));
}

at::Tensor rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin) {
  const int64_t B = grad_q.size(0), heads = grad_q.size(1), L = grad_q.size(2), head_dim = grad_q.size(3);
  const at::Tensor out = at::empty({B, L, 3, heads, head_dim}, grad_q.options());
  const at::Tensor grads[3] = {grad_q, grad_k, grad_v};
  for (int64_t part = 0; part < 3; ++part) {
    const at::Tensor grad = grads[part].transpose(1, 2).unsqueeze(2);
    const at::Tensor to = out.narrow(2, part, 1);
    if (part < 2 && cos) {
      turn(grad, to, *cos, *sin, -1);
    } else {
      to.copy_(grad);
    }
  }
  return out.view({B, L, 3 * heads * head_dim});
}

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                                     const OptionalTensor& sin) {
  const Heads h = rotated_heads(qkv, heads, cos, sin);
  const double scale = 1 / std::sqrt(static_cast<double>(h.q.size(-1)));
  const at::Tensor score = at::matmul(h.q, h.k.transpose(-2, -1)).mul_(scale);
  const at::Tensor lse = at::logsumexp(score, {-1});
  return {merge_heads(at::matmul(at::softmax(score, -1), h.v)).to(qkv.scalar_type()), lse};
}

// With the weights P: dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = dS K, dK = dS^T Q.
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin) {
  const Heads h = rotated_heads(qkv, heads, cos, sin);
  const int64_t B = qkv.size(0), L = qkv.size(1), head_dim = h.q.size(-1);
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const auto by_head = [&](const at::Tensor& rows) {
    return rows.reshape({B, L, heads, head_dim}).transpose(1, 2).to(accumulate_type(qkv));
  };
  const at::Tensor g = by_head(grad_out);
  const at::Tensor delta = (g * by_head(out)).sum(-1, /*keepdim=*/true);
  const at::Tensor weight = at::exp(at::matmul(h.q, h.k.transpose(-2, -1)).mul_(scale) - lse.unsqueeze(-1));
  const at::Tensor grad_score = weight * (at::matmul(g, h.v.transpose(-2, -1)) - delta) * scale;
  return rotate_qkv_backward(at::matmul(grad_score, h.k), at::matmul(grad_score.transpose(-2, -1), h.q),
                             at::matmul(weight.transpose(-2, -1), g), cos, sin)
      .to(qkv.scalar_type());
}

}  // namespace hrm::ops::reference
