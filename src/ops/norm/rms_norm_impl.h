#pragma once
// What the files of rms_norm share: the input checks, the plain ATen reference and the CPU loops.
//
//   hrm::rms_norm_residual           y alone; what callers use
//   hrm::rms_norm_residual_forward   y and what the backward pass needs
//   hrm::rms_norm_backward           the gradient of x, which is also that of residual

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

struct RmsNormSaved {
  at::Tensor y;
  at::Tensor rstd;  // (...) = y's shape without its last dimension; float32, float64 for float64 input
};

// Throw c10::Error with the op's name and the shapes.
void check_rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);
void check_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2);

namespace reference {

RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);
at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2);

}  // namespace reference

namespace cpu {

// The loops over rows, all inputs contiguous float32. rstd is written when `save`.
RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps, bool save);
at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd);

}  // namespace cpu
}  // namespace hrm::ops
