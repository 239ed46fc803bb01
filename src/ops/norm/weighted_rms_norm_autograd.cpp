#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/weighted_rms_norm.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gives y, and x itself where it `keeps` the stream.
struct WeightedRmsNorm : torch::autograd::Function<WeightedRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps,
                               bool keeps) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, rstd] = weighted_rms_norm_forward(x, weight, eps);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["needs_weight"] = weight.requires_grad();
    ctx->set_materialize_grads(false);  // where one of the two outputs is not used
    return keeps ? variable_list{y, x.detach()} : variable_list{y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor through_stream = grads.size() > 1 ? grads[1] : at::Tensor();
    variable_list out(4);
    if (!grads[0].defined()) {
      out[0] = through_stream;
      return out;
    }
    const variable_list saved = ctx->get_saved_variables();
    const auto [grad_x, grad_weight] =
        weighted_rms_norm_backward(grads[0], saved[0], saved[2], saved[1], optional_tensor(through_stream),
                                   ctx->saved_data["needs_weight"].toBool());
    out[0] = grad_x;
    out[1] = grad_weight;
    return out;
  }
};

bool records(const at::Tensor& x, const at::Tensor& weight) {
  return at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
}

at::Tensor weighted_rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (records(x, weight)) return WeightedRmsNorm::apply(x, weight, eps, false)[0];
  at::AutoDispatchBelowADInplaceOrView below;
  return weighted_rms_norm(x, weight, eps);
}

}  // namespace

NormedStream weighted_rms_norm_stream(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!records(x, weight)) return {weighted_rms_norm(x, weight, eps), x};
  const variable_list out = WeightedRmsNorm::apply(x, weight, eps, true);
  return {out[0], out[1]};
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("weighted_rms_norm", &weighted_rms_norm_autograd);
  // Differentiating through these (a second derivative) is an error instead of a silently missing gradient.
  m.impl("weighted_rms_norm_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("weighted_rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
