#include <ATen/ATen.h>

#include "ops/optim/grad_norm_impl.h"

namespace hrm::ops::reference {

at::Tensor float64_norm(const at::Tensor& flat) {
  return at::linalg_vector_norm(flat, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
}

GradNormResult grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                         const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                         const std::optional<at::Tensor>& report) {
  const at::NoGradGuard no_grad;
  at::Tensor norm = at::linalg_vector_norm(flat, norm_type, std::nullopt, /*keepdim=*/false, at::kDouble);
  if (loss_scale) norm = norm / *loss_scale;
  norm = norm.to(at::kFloat);
  const at::Tensor clip =
      max_norm > 0 ? at::clamp_max(at::reciprocal(norm + 1e-6) * max_norm, 1.0) : at::ones_like(norm);
  const at::Tensor nonfinite = at::isfinite(norm).logical_not().to(at::kFloat);
  if (skip) at::Tensor(*skip).copy_(at::maximum(*skip, nonfinite));
  if (report) at::Tensor(*report).copy_(at::stack({norm, norm * clip, skip ? *skip : nonfinite}));
  return {norm, loss_scale ? clip / *loss_scale : clip, nonfinite};
}

}  // namespace hrm::ops::reference
