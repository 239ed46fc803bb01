#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/act_loss.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
struct ActLossFunction : torch::autograd::Function<ActLossFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& token_loss, const at::Tensor& labelled,
                               const at::Tensor& right, const at::Tensor& q, const OptionalTensor& target,
                               const at::Tensor& steps, const at::Tensor& halted) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({token_loss, labelled, right, q, target.value_or(at::Tensor())});
    const ActLossSums out = act_loss({token_loss, labelled, right}, q, target, steps, halted);
    ctx->mark_non_differentiable({out.metrics});
    return {out.loss, out.metrics};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const OptionalTensor target = optional_tensor(saved[4]);
    variable_list out(7);
    out[0] = grads[0].expand_as(saved[0]);
    out[3] = act_loss_backward(grads[0], {saved[0], saved[1], saved[2]}, saved[3], target);
    return out;
  }
};

std::tuple<at::Tensor, at::Tensor> act_loss_autograd(const at::Tensor& token_loss, const at::Tensor& labelled,
                                                     const at::Tensor& right, const at::Tensor& q,
                                                     const OptionalTensor& target, const at::Tensor& steps,
                                                     const at::Tensor& halted) {
  if (at::GradMode::is_enabled() && (token_loss.requires_grad() || q.requires_grad())) {
    const variable_list out = ActLossFunction::apply(token_loss, labelled, right, q, target, steps, halted);
    return {out[0], out[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  const ActLossSums out = act_loss({token_loss, labelled, right}, q, target, steps, halted);
  return {out.loss, out.metrics};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("act_loss", &act_loss_autograd);
  m.impl("act_loss_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("act_q_target", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
