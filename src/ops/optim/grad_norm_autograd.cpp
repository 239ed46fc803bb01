#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/optim/grad_norm_impl.h"

namespace hrm::ops {
namespace {

// No derivative; the version counters follow what is written.
GradNormResult grad_norm_autograd(const at::Tensor& flat, double max_norm, double norm_type,
                                  const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                                  const std::optional<at::Tensor>& report) {
  GradNormResult result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = grad_norm(flat, max_norm, norm_type, loss_scale, skip, report);
  }
  for (const auto* written : {&skip, &report}) {
    if (*written && !(*written)->is_inference()) (*written)->unsafeGetTensorImpl()->bump_version();
  }
  return result;
}

at::Tensor float64_norm_autograd(const at::Tensor& flat) {
  at::AutoDispatchBelowADInplaceOrView below;
  return float64_norm(flat);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("grad_norm", &grad_norm_autograd);
  m.impl("float64_norm", &float64_norm_autograd);
}

}  // namespace hrm::ops
