#pragma once
// What the files of weighted_rms_norm share: the input checks and the plain ATen reference.

#include "hrm/ops/weighted_rms_norm.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
void check_weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                                      const at::Tensor& weight, const std::optional<at::Tensor>& grad_x);

namespace reference {

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                              const at::Tensor& rstd, const at::Tensor& weight,
                                                              const std::optional<at::Tensor>& grad_x,
                                                              bool needs_weight);

}  // namespace reference
}  // namespace hrm::ops
