#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/adam_atan2.h"

namespace hrm::ops {
namespace {

// An update has no derivative: it runs below autograd. The version counters tell a graph that still holds the old
// weights that they are gone.
void adam_atan2_autograd(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                         at::TensorList exp_avg_sqs, const at::Tensor& step, const at::Tensor& lr, double beta1,
                         double beta2, at::ArrayRef<double> weight_decay, const at::Tensor& grad_scale,
                         const at::Tensor& skip) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    adam_atan2_(params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, weight_decay, grad_scale, skip);
  }
  const auto bump = [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const at::TensorList list : {params, exp_avgs, exp_avg_sqs}) {
    for (const at::Tensor& tensor : list) bump(tensor);
  }
  bump(step);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("adam_atan2_", &adam_atan2_autograd);
}

}  // namespace hrm::ops
