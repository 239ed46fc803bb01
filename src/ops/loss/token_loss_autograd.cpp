#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/token_loss.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TokenLossFunction : torch::autograd::Function<TokenLossFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                               int64_t kind, int64_t precision) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({logits, labels});
    ctx->saved_data["first"] = first;
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["precision"] = precision;
    const TokenLoss out =
        token_loss(logits, labels, first, static_cast<LossKind>(kind), static_cast<LossPrecision>(precision));
    ctx->mark_non_differentiable({out.labelled, out.right});
    return {out.loss, out.labelled, out.right};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = token_loss_backward(grads[0], saved[0], saved[1], ctx->saved_data["first"].toInt(),
                                                static_cast<LossKind>(ctx->saved_data["kind"].toInt()),
                                                static_cast<LossPrecision>(ctx->saved_data["precision"].toInt()));
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> token_loss_autograd(const at::Tensor& logits, const at::Tensor& labels,
                                                                   int64_t first, int64_t kind, int64_t precision) {
  if (at::GradMode::is_enabled() && logits.requires_grad()) {
    const variable_list out = TokenLossFunction::apply(logits, labels, first, kind, precision);
    return {out[0], out[1], out[2]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  const TokenLoss out =
      token_loss(logits, labels, first, static_cast<LossKind>(kind), static_cast<LossPrecision>(precision));
  return {out.loss, out.labelled, out.right};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("token_loss", &token_loss_autograd);
  m.impl("token_loss_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
