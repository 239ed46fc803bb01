// The readable version, and the oracle of all others.
#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops::reference {
RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps) {
  const at::Tensor h = (x + residual).contiguous();
  const at::Tensor h_acc = h.to(accumulate_type(h));
  const at::Tensor rstd = at::rsqrt(h_acc.square().mean(-1, /*keepdim=*/true) + eps);
  return {(h_acc * rstd).to(h.scalar_type()), rstd.squeeze(-1)};
}

// grad_h = rstd * (grad_y - y * mean(grad_y * y)).
at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2) {
  const at::ScalarType acc = accumulate_type(y);
  const at::Tensor n = y.to(acc);
  at::Tensor g = grad_y.to(acc);
  if (grad_y2) g = g + *grad_y2;
  const at::Tensor along = (g * n).mean(-1, /*keepdim=*/true);
  return (rstd.unsqueeze(-1) * (g - n * along)).to(y.scalar_type()).contiguous();
}

}  // namespace hrm::ops::reference
