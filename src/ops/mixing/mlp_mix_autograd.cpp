#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "hrm/ops/mlp_mix.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MlpMix : torch::autograd::Function<MlpMix> {
  // The masters are arguments so that the node exists whenever they train, also where h needs no gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const at::Tensor& weight_gate_up,
                            const at::Tensor& weight_down, const at::Tensor& master_gate_up,
                            const at::Tensor& master_down, double eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, rstd] = mlp_mix_forward(h, weight_gate_up, weight_down, eps);
    ctx->save_for_backward({h, y, rstd, weight_gate_up, weight_down});
    // Buffers that each use adds to are no saved variables. A weight that does not train gets a buffer of its own,
    // which is thrown away: the kernels always compute both gradients.
    const auto buffer = [](const at::Tensor& master) {
      const at::Tensor grad = gradient_buffer(master);
      return grad.defined() ? grad : at::zeros_like(master, master.options().requires_grad(false));
    };
    ctx->saved_data["grad_gate_up"] = buffer(master_gate_up);
    ctx->saved_data["grad_down"] = buffer(master_down);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::mlp_mix has no second derivative (grad_y ", grads[0].sizes(), ")");
    const variable_list saved = ctx->get_saved_variables();
    variable_list out(6);
    out[0] = mlp_mix_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                              ctx->saved_data["grad_gate_up"].toTensor(), ctx->saved_data["grad_down"].toTensor());
    return out;
  }
};

}  // namespace

at::Tensor mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                   const at::Tensor& master_gate_up, const at::Tensor& master_down, double eps) {
  if (at::GradMode::is_enabled() &&
      (h.requires_grad() || master_gate_up.requires_grad() || master_down.requires_grad())) {
    TORCH_CHECK((!weight_gate_up.requires_grad() || weight_gate_up.is_same(master_gate_up)) &&
                    (!weight_down.requires_grad() || weight_down.is_same(master_down)),
                "hrm::mlp_mix: weights of shape ", weight_gate_up.sizes(), " and ", weight_down.sizes(),
                " must not require a gradient; the masters do");
    return MlpMix::apply(h, weight_gate_up, weight_down, master_gate_up, master_down, eps);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return mlp_mix(h, weight_gate_up, weight_down, eps);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  // Differentiating through these is an error instead of a silently missing gradient.
  m.impl("mlp_mix", torch::autograd::autogradNotImplementedFallback());
  m.impl("mlp_mix_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("mlp_mix_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
