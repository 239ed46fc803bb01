// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/norm/weighted_rms_norm_impl.h"

namespace hrm::ops::reference {
std::tuple<at::Tensor, at::Tensor> weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor h = to_accumulate_type(x).contiguous();
  const at::Tensor rstd = at::rsqrt(h.square().mean(-1, /*keepdim=*/true) + eps);
  return {(h * rstd * weight).to(x.scalar_type()), rstd.squeeze(-1)};
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                              const at::Tensor& rstd, const at::Tensor& weight,
                                                              const std::optional<at::Tensor>& grad_x,
                                                              bool needs_weight) {
  const at::Tensor factor = rstd.unsqueeze(-1), n = to_accumulate_type(x) * factor, grad = to_accumulate_type(grad_y);
  at::Tensor grad_weight;
  if (needs_weight) grad_weight = (grad * n).reshape({-1, weight.size(0)}).sum(0);
  const at::Tensor g = grad * weight;
  at::Tensor out = (g - n * (g * n).mean(-1, /*keepdim=*/true)) * factor;
  if (grad_x) out = out + *grad_x;
  return {out.to(x.scalar_type()).contiguous(), grad_weight};
}

}  // namespace hrm::ops::reference
