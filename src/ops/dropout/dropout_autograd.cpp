#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/dropout.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({step});
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    return dropout(x, step, p, seed);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::dropout has no second derivative");
    return {dropout(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["p"].toDouble(),
                    ctx->saved_data["seed"].toInt()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor dropout_autograd(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  if (at::GradMode::is_enabled() && x.requires_grad()) return Dropout::apply(x, step, p, seed);
  at::AutoDispatchBelowADInplaceOrView below;
  return dropout(x, step, p, seed);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("dropout", &dropout_autograd);
  m.impl("dropout_add_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
