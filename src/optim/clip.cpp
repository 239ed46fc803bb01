#include "hrm/optim/clip.h"

#include <ATen/ATen.h>

namespace hrm::optim {
namespace {

GradNorm with_coefficient(const at::Tensor& norm, double max_norm) {
  const at::Tensor coef =
      max_norm > 0 ? at::clamp_max(at::reciprocal(norm + 1e-6) * max_norm, 1.0) : at::ones_like(norm);
  return {norm, coef, at::isfinite(norm).logical_not().to(at::kFloat)};
}

}  // namespace

GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  return with_coefficient(at::linalg_vector_norm(flat, norm_type), max_norm);
}

GradNorm global_norm(at::TensorList grads, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(!grads.empty(), "global_norm: the list of gradients is empty");
  return with_coefficient(at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, norm_type)), norm_type), max_norm);
}

void scale_(at::TensorList grads, const at::Tensor& coef) {
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(grads, coef);
}

}  // namespace hrm::optim
