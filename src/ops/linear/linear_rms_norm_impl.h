#pragma once
// What the files of linear_rms_norm share: the input checks. The same work by simpler ops is at::linear, then
// ops::rms_norm_residual.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_linear_rms_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps);

void check_linear_rms_norm_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps,
                               const at::Tensor& addend);

}  // namespace hrm::ops
