#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "ops/linear/linear_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linear : torch::autograd::Function<Linear> {
  // master and bias are arguments so that the node exists whenever they train, also where x needs no gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_compute,
                            const at::Tensor& master, const OptionalTensor& bias, const OptionalTensor& grad_weight,
                            const OptionalTensor& grad_bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["needs_x"] = x.requires_grad();
    const bool needs_weight = master.requires_grad();
    ctx->save_for_backward({needs_weight ? x : at::Tensor(), weight_compute});
    // The buffers are no saved variables: each use of the weight adds to them, which is not a change behind the graph's
    // back.
    if (needs_weight) ctx->saved_data["grad_weight"] = *grad_weight;
    if (bias && bias->requires_grad()) ctx->saved_data["grad_bias"] = *grad_bias;
    return linear(x, weight_compute, master, bias, grad_weight, grad_bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor& grad_y = grads[0];
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::linear has no second derivative (grad_y ", grad_y.sizes(), ")");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const auto find = [&](const char* name) {
      const auto entry = ctx->saved_data.find(name);
      return entry == ctx->saved_data.end() ? at::Tensor() : entry->second.toTensor();
    };
    const at::Tensor grad_y_rows = grad_y.reshape({-1, weight.size(0)});
    if (const at::Tensor grad_weight = find("grad_weight"); grad_weight.defined()) {
      linear_accumulate_(grad_weight, grad_y_rows, saved[0].reshape({-1, weight.size(1)}));
    }
    if (const at::Tensor grad_bias = find("grad_bias"); grad_bias.defined()) {
      grad_bias.add_(at::sum(grad_y_rows, at::IntArrayRef{0}, /*keepdim=*/false, grad_bias.scalar_type()));
    }
    variable_list out(6);
    if (ctx->saved_data["needs_x"].toBool()) {
      out[0] = linear_grad_x(grad_y, weight);
    }
    return out;
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                           const OptionalTensor& bias, const OptionalTensor& grad_weight,
                           const OptionalTensor& grad_bias) {
  const bool trains_bias = bias && bias->requires_grad();
  if (at::GradMode::is_enabled() && (x.requires_grad() || master.requires_grad() || trains_bias)) {
    TORCH_CHECK(!master.requires_grad() || grad_weight, "hrm::linear: master of shape ", master.sizes(),
                " requires a gradient, so grad_weight must be given");
    TORCH_CHECK(!trains_bias || grad_bias, "hrm::linear: bias of shape ", bias->sizes(),
                " requires a gradient, so grad_bias must be given");
    TORCH_CHECK(!weight_compute.requires_grad() || weight_compute.is_same(master),
                "hrm::linear: weight_compute of shape ", weight_compute.sizes(),
                " must not require a gradient; the master does");
    return Linear::apply(x, weight_compute, master, bias, grad_weight, grad_bias);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return linear(x, weight_compute, master, bias, grad_weight, grad_bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("linear", &linear_autograd);
  m.impl("linear_accumulate_", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_grad_x", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_grad_x_add_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
