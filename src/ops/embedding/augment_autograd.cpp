#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/embedding/augment_impl.h"

namespace hrm::ops {
namespace {

// Integers have no derivative; the version counters follow what is written.
void augment_autograd(const AugmentArgs& args) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    augment_rows_(args.inputs, args.labels, args.identifiers, args.table_inputs, args.table_labels, args.picks,
                  args.how);
  }
  for (const at::Tensor* written : {&args.inputs, &args.labels, &args.identifiers}) {
    if (!written->is_inference()) written->unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("augment_rows_", &augment_kernel<augment_autograd>);
}

}  // namespace hrm::ops
