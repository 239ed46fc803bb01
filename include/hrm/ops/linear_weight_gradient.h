#pragma once
// The weight's gradient of a product where nothing is to be added to yet.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// grad_weight = grad_y^T @ x: linear_accumulate_ (hrm/ops/linear.h) to a buffer of zeros, of the same types and shapes.
// On a GPU large products write it without reading it. Without a derivative.
void linear_weight_gradient_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x);

}  // namespace hrm::ops
