#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/inject.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Inject : torch::autograd::Function<Inject> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& a, const at::Tensor& b) {
    at::AutoDispatchBelowADInplaceOrView below;
    return inject(a, b);
  }

  static variable_list backward(AutogradContext* /*ctx*/, variable_list grads) { return {grads[0], grads[0]}; }
};

at::Tensor inject_autograd(const at::Tensor& a, const at::Tensor& b) {
  if (at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad())) return Inject::apply(a, b);
  at::AutoDispatchBelowADInplaceOrView below;
  return inject(a, b);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("inject", &inject_autograd);
}

}  // namespace hrm::ops
