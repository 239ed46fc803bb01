#include "hrm/objectives/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>

#include "hrm/data/batch.h"

namespace hrm::objectives {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static_assert(data::kIgnoreLabel == ops::kIgnoredToken);

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels, int64_t kind,
                            int64_t precision) {
    ctx->save_for_backward({logits, labels});
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["precision"] = precision;
    return ops::token_cross_entropy(logits, labels, static_cast<LossKind>(kind), static_cast<LossPrecision>(precision));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {ops::token_cross_entropy_backward(grads[0], saved[0], saved[1],
                                              static_cast<LossKind>(ctx->saved_data["kind"].toInt()),
                                              static_cast<LossPrecision>(ctx->saved_data["precision"].toInt())),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor log_stablemax(const at::Tensor& logits, LossPrecision precision) {
  const at::Tensor x = logits.detach().to(precision == LossPrecision::f64 ? at::kDouble : at::kFloat);
  const at::Tensor s = at::where(x.ge(0), x + 1, at::reciprocal(1 - x + 1e-30));
  return at::log(s / s.sum(-1, /*keepdim=*/true));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, LossKind kind, LossPrecision precision) {
  return CrossEntropy::apply(logits, labels, static_cast<int64_t>(kind), static_cast<int64_t>(precision));
}

}  // namespace hrm::objectives
