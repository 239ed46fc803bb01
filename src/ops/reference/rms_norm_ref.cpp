// The readable version, and the oracle of all others.
#include <ATen/ATen.h>

#include "ops/rms_norm_impl.h"

namespace hrm::ops::reference {
namespace {

at::ScalarType accumulate_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps) {
  const at::Tensor h = (x + residual).contiguous();
  const at::Tensor h_acc = h.to(accumulate_type(h));
  const at::Tensor rstd = at::rsqrt(h_acc.square().mean(-1, /*keepdim=*/true) + eps);
  return {(h_acc * rstd).to(h.scalar_type()), h, rstd.squeeze(-1)};
}

// With n = h * rstd:  grad_h = rstd * (grad_y - n * mean(grad_y * n)).
at::Tensor rms_norm_residual_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& rstd) {
  const at::ScalarType acc = accumulate_type(h);
  const at::Tensor scale = rstd.unsqueeze(-1);
  const at::Tensor n = h.to(acc) * scale;
  const at::Tensor g = grad_y.to(acc);
  return (scale * (g - n * (g * n).mean(-1, /*keepdim=*/true))).to(h.scalar_type()).contiguous();
}

}  // namespace hrm::ops::reference
