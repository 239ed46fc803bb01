// The readable version, the oracle of all others, and what runs where the fused kernel does not.
#include <ATen/ATen.h>

#include "hrm/ops/linear.h"
#include "ops/common/accumulate_type.h"
#include "ops/mixing/mlp_mix_impl.h"

namespace hrm::ops::reference {
namespace {

// (B, C, D) -> (B * D, C): the columns as rows.
at::Tensor columns(const at::Tensor& t) {
  return t.transpose(1, 2).reshape({-1, t.size(1)});
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                           const at::Tensor& weight_down, double eps) {
  const int64_t inner = weight_down.size(1);
  const at::Tensor gate_up = at::matmul(weight_gate_up, h);  // (B, 2F, D)
  const at::Tensor act = at::silu(gate_up.narrow(1, 0, inner)).mul_(gate_up.narrow(1, inner, inner));
  const at::Tensor v = (h + at::matmul(weight_down, act)).to(accumulate_type(h));
  const at::Tensor rstd = at::rsqrt(v.square().mean(1, /*keepdim=*/true) + eps);
  return {(v * rstd).to(h.scalar_type()).contiguous(), rstd.squeeze(1)};
}

at::Tensor mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down) {
  const int64_t inner = weight_down.size(1);
  const at::ScalarType acc = accumulate_type(h);
  // y = v * rstd:  grad_v = rstd * (grad_y - y * mean over L of grad_y * y), for both terms of v = h + z.
  const at::Tensor g = grad_y.to(acc), n = y.to(acc);
  const at::Tensor grad_v = (rstd.unsqueeze(1) * (g - n * (g * n).mean(1, /*keepdim=*/true))).to(h.scalar_type());

  const at::Tensor gate_up = at::matmul(weight_gate_up, h);
  const at::Tensor gate = gate_up.narrow(1, 0, inner), up = gate_up.narrow(1, inner, inner);
  const at::Tensor grad_act = at::matmul(weight_down.t(), grad_v);  // (B, F, D)
  const at::Tensor silu = at::silu(gate);
  const at::Tensor grad_gate_up = at::cat({at::silu_backward(grad_act * up, gate), grad_act * silu}, 1);
  linear_accumulate_(grad_weight_down, columns(grad_v), columns(silu * up));
  linear_accumulate_(grad_weight_gate_up, columns(grad_gate_up), columns(h));
  return (grad_v + at::matmul(weight_gate_up.t(), grad_gate_up)).contiguous();
}

}  // namespace hrm::ops::reference
