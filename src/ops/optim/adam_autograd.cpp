#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/optim/adam_impl.h"

namespace hrm::ops {
namespace {

// An update has no derivative: it runs below autograd. The version counters tell a graph that still holds the old
// weights that they are gone.
void adam_autograd(const AdamArgs& args) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    adam_(args);
  }
  const auto bump = [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const at::TensorList list : {args.params, args.exp_avgs, args.exp_avg_sqs, args.averages}) {
    for (const at::Tensor& tensor : list) bump(tensor);
  }
  for (size_t i = 0; i < args.copies.size(); ++i) {
    if (has_copy(args, i)) bump(args.copies[i]);
  }
  bump(args.step);
  if (args.update_ratio.defined()) bump(args.update_ratio);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("adam_", &adam_kernel<adam_autograd>);
}

}  // namespace hrm::ops
