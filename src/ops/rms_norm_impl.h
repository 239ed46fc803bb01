#pragma once
// What the files of rms_norm share: the internal ops, the input checks and the plain ATen reference.
//
//   hrm::rms_norm_residual           y alone; what callers use
//   hrm::rms_norm_residual_forward   y and what the backward pass needs
//   hrm::rms_norm_residual_backward  the gradient of x, which is also that of residual

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

struct RmsNormSaved {
  at::Tensor y;
  at::Tensor h;     // x + residual, input dtype, contiguous
  at::Tensor rstd;  // (...) = h's shape without its last dimension; float32, float64 for float64 input
};

// Throw c10::Error with the op's name and the shapes.
void check_rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);
void check_rms_norm_residual_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& rstd);

// Through the dispatcher.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_residual_forward(const at::Tensor& x,
                                                                         const at::Tensor& residual, double eps);
at::Tensor rms_norm_residual_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& rstd);

namespace reference {

RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps);
at::Tensor rms_norm_residual_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& rstd);

}  // namespace reference

namespace cpu {

// The loops over rows. x and residual contiguous float32; h and rstd are written when `save`.
RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps, bool save);
at::Tensor rms_norm_residual_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& rstd);

}  // namespace cpu
}  // namespace hrm::ops
