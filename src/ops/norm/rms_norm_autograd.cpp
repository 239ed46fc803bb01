#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/rms_norm.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormResidual : torch::autograd::Function<RmsNormResidual> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& residual, double eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, rstd] = rms_norm_residual_forward(x, residual, eps);
    ctx->save_for_backward({y, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    // The sum passes its gradient on to both terms unchanged.
    const at::Tensor grad = rms_norm_backward(grads[0], saved[0], saved[1]);
    return {grad, grad, at::Tensor()};
  }
};

at::Tensor rms_norm_residual_autograd(const at::Tensor& x, const at::Tensor& residual, double eps) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || residual.requires_grad())) {
    return RmsNormResidual::apply(x, residual, eps);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return rms_norm_residual(x, residual, eps);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("rms_norm_residual", &rms_norm_residual_autograd);
  // Differentiating through these (a second derivative) is an error instead of a silently missing gradient.
  m.impl("rms_norm_residual_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
