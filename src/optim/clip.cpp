#include "hrm/optim/clip.h"

#include <ATen/ATen.h>

#include "hrm/ops/grad_norm.h"

namespace hrm::optim {

GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type, const GradNormExtras& extras) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const auto [norm, coef, nonfinite] = ops::grad_norm(flat, max_norm, norm_type, optional(extras.loss_scale),
                                                      optional(extras.skip), optional(extras.report));
  return {norm, coef, nonfinite};
}

}  // namespace hrm::optim
