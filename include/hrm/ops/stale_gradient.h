#pragma once
// Gradient buffers of large weights whose contents count no more: the first product of a step overwrites them. So they
// need not be cleared, and the product need not read them.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// From how many elements on nn::ParameterSet and parallel::GradientReducer let weights of products be overwritten.
// Small ones are cleared together, which takes less time. The setter is for tests.
int64_t overwritten_elements();
void set_overwritten_elements(int64_t elements);

// Allows stale contents. The mark belongs to this tensor (its TensorImpl), which leaf.grad() must be.
void allow_stale(const at::Tensor& buffer);
// The buffer's contents count no more. It is marked stale, or cleared if it allows no stale contents or a pass under
// way is going to add to it (see gradient_buffer).
void discard_gradient_(const at::Tensor& buffer);
// Whether the buffer is stale; it no longer is: the caller overwrites all of it.
bool take_stale(const at::Tensor& buffer);
// Clears the buffer if it is stale: no product has written it.
void settle_gradient_(const at::Tensor& buffer);
// No pass is under way.
void forget_passes(const at::Tensor& buffer);

// As gradient_buffer() (hrm/ops/linear.h), for passes that write it by linear_accumulate_() or after take_stale()
// alone. gradient_buffer() itself clears what is stale, since its callers add to it.
at::Tensor stale_gradient_buffer(const at::Tensor& leaf);

}  // namespace hrm::ops
