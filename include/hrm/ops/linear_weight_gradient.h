#pragma once
// The weight gradient of a product, where the buffer holds nothing yet.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// grad_weight = grad_y^T @ x, with the types and shapes of linear_accumulate_ (hrm/ops/linear.h). The same result as
// linear_accumulate_ into zeros. On a GPU, large products write grad_weight without reading it. Not differentiable.
void linear_weight_gradient_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x);

}  // namespace hrm::ops
