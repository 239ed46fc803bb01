#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/act_update.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

void bump(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// An update of the state has no derivative: it runs below autograd. The version counters tell a graph that still holds
// the old carry that it is gone.
void act_begin_autograd(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& inputs,
                        const at::Tensor& labels, const at::Tensor& puzzle_identifiers, const at::Tensor& halted,
                        const at::Tensor& H_init, const at::Tensor& L_init, const at::Tensor& new_inputs,
                        const at::Tensor& new_labels, const at::Tensor& new_identifiers, const OptionalTensor& cursor) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    act_begin_({z_H, z_L, steps, halted, inputs, labels, puzzle_identifiers}, H_init, L_init,
               {new_inputs, new_labels, new_identifiers}, cursor);
  }
  for (const at::Tensor* written : {&z_H, &z_L, &steps, &inputs, &labels, &puzzle_identifiers}) bump(*written);
  if (cursor) bump(*cursor);
}

void act_end_autograd(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& halted,
                      const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
                      const at::Tensor& uniform, const at::Tensor& min_steps, int64_t max_steps, double exploration,
                      bool training, bool no_continue) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    act_end_({z_H, z_L, steps, halted, {}, {}, {}}, new_z_H, new_z_L, q, uniform, min_steps,
             {max_steps, exploration, training, no_continue});
  }
  for (const at::Tensor* written : {&z_H, &z_L, &steps, &halted}) bump(*written);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("act_begin_", &act_begin_autograd);
  m.impl("act_end_", &act_end_autograd);
}

}  // namespace hrm::ops
