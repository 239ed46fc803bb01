#include "hrm/optim/clip.h"

#include <ATen/ATen.h>

#include "hrm/ops/grad_norm.h"
#include "ops/common/optional_tensor.h"

namespace hrm::optim {

GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type, const GradNormExtras& extras) {
  const auto [norm, coef, nonfinite] =
      ops::grad_norm(flat, max_norm, norm_type, ops::optional_tensor(extras.loss_scale),
                     ops::optional_tensor(extras.skip), ops::optional_tensor(extras.report));
  return {norm, coef, nonfinite};
}

}  // namespace hrm::optim
