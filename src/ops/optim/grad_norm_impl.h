#pragma once
// What the files of grad_norm share.

#include "hrm/ops/grad_norm.h"

namespace hrm::ops {

using GradNormResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Throws c10::Error with the op's name and what does not fit.
void check_grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                     const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                     const std::optional<at::Tensor>& report);

void check_float64_norm(const at::Tensor& flat);

namespace reference {

at::Tensor float64_norm(const at::Tensor& flat);

GradNormResult grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                         const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                         const std::optional<at::Tensor>& report);

}  // namespace reference
}  // namespace hrm::ops
