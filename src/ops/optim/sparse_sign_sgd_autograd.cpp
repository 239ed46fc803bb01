#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/optim/sparse_sign_sgd_impl.h"

namespace hrm::ops {
namespace {

// An update has no derivative; the version counter follows what is written.
void sparse_sign_sgd_autograd(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads,
                              const at::Tensor& lr, double weight_decay, const at::Tensor& skip) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    sparse_sign_sgd_(weights, ids, row_grads, lr, weight_decay, skip);
  }
  if (!weights.is_inference()) weights.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("sparse_sign_sgd_", &sparse_sign_sgd_autograd);
}

}  // namespace hrm::ops
