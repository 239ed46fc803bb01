#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/damped_update.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DampedUpdate : torch::autograd::Function<DampedUpdate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& update, const at::Tensor& state,
                            const std::optional<at::Tensor>& draws, int64_t number, double damping, double std,
                            int64_t seed) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["damping"] = damping;
    ctx->saved_data["needs_state"] = state.requires_grad();
    return damped_update(update, state, draws, number, damping, std, seed);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const double damping = ctx->saved_data["damping"].toDouble();
    variable_list out(7);
    out[0] = damping > 0 ? grads[0] * (1 - damping) : grads[0];
    if (ctx->saved_data["needs_state"].toBool() && damping > 0) out[1] = grads[0] * damping;
    return out;
  }
};

at::Tensor damped_update_autograd(const at::Tensor& update, const at::Tensor& state,
                                  const std::optional<at::Tensor>& draws, int64_t number, double damping, double std,
                                  int64_t seed) {
  if (at::GradMode::is_enabled() && (update.requires_grad() || state.requires_grad())) {
    return DampedUpdate::apply(update, state, draws, number, damping, std, seed);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return damped_update(update, state, draws, number, damping, std, seed);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("damped_update", &damped_update_autograd);
}

}  // namespace hrm::ops
