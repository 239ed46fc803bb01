#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/swiglu.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({gate_up});
    return swiglu(gate_up);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {swiglu_backward(grads[0], ctx->get_saved_variables()[0])};
  }
};

at::Tensor swiglu_autograd(const at::Tensor& gate_up) {
  if (at::GradMode::is_enabled() && gate_up.requires_grad()) return Swiglu::apply(gate_up);
  at::AutoDispatchBelowADInplaceOrView below;
  return swiglu(gate_up);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("swiglu", &swiglu_autograd);
  m.impl("swiglu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
