#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/conv_swiglu.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ConvSwiglu : torch::autograd::Function<ConvSwiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, const at::Tensor& taps,
                            const at::Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({gate_up, taps, bias});
    ctx->saved_data["needs_weight"] = taps.requires_grad() || bias.requires_grad();
    return conv_swiglu(gate_up, taps, bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [grad_gate_up, grad_taps, grad_bias] =
        conv_swiglu_backward(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["needs_weight"].toBool());
    return {grad_gate_up, grad_taps, grad_bias};
  }
};

at::Tensor conv_swiglu_autograd(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  const bool records = gate_up.requires_grad() || taps.requires_grad() || bias.requires_grad();
  if (at::GradMode::is_enabled() && records) return ConvSwiglu::apply(gate_up, taps, bias);
  at::AutoDispatchBelowADInplaceOrView below;
  return conv_swiglu(gate_up, taps, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("conv_swiglu", &conv_swiglu_autograd);
  // Differentiating through this (a second derivative) is an error instead of a silently missing gradient.
  m.impl("conv_swiglu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
