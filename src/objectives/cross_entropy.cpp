#include "hrm/objectives/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>

#include "hrm/data/batch.h"

namespace hrm::objectives {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType type_of(LossPrecision precision) {
  return precision == LossPrecision::f64 ? at::kDouble : at::kFloat;
}

at::Tensor stable(const at::Tensor& x) {
  return at::where(x.ge(0), x + 1, at::reciprocal(1 - x + 1e-30));
}

// Labels as gather indices: ignored ones point at token 0 and are masked by the caller.
at::Tensor label_index(const at::Tensor& labels) {
  return labels.masked_fill(labels.eq(data::kIgnoreLabel), 0).to(at::kLong).unsqueeze(-1);
}

struct StablemaxCrossEntropy : torch::autograd::Function<StablemaxCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels,
                            at::ScalarType type) {
    ctx->save_for_backward({logits, labels});
    ctx->saved_data["type"] = static_cast<int64_t>(type);
    const at::Tensor s = stable(logits.to(type));
    const at::Tensor p = s.gather(-1, label_index(labels)) / s.sum(-1, /*keepdim=*/true);
    return at::log(p).neg_().squeeze(-1).masked_fill_(labels.eq(data::kIgnoreLabel), 0);
  }

  // d(-log(s_y / sum s)) / dx_j = s'_j / sum s - [j = y] s'_y / s_y, with s' = 1 for x >= 0, else s^2.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &labels = saved[1];
    const at::Tensor x = logits.to(static_cast<at::ScalarType>(ctx->saved_data["type"].toInt()));
    const at::Tensor s = stable(x), index = label_index(labels);
    const at::Tensor slope = at::where(x.ge(0), at::ones({}, x.options()), s * s);
    const at::Tensor weight = grads[0].masked_fill(labels.eq(data::kIgnoreLabel), 0).unsqueeze(-1);
    at::Tensor out = slope / s.sum(-1, /*keepdim=*/true);
    out.scatter_(-1, index, out.gather(-1, index) - slope.gather(-1, index) / s.gather(-1, index));
    return {out.mul_(weight).to(logits.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor log_stablemax(const at::Tensor& logits, LossPrecision precision) {
  const at::Tensor s = stable(logits.detach().to(type_of(precision)));
  return at::log(s / s.sum(-1, /*keepdim=*/true));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, LossKind kind, LossPrecision precision) {
  if (kind == LossKind::stablemax) return StablemaxCrossEntropy::apply(logits, labels, type_of(precision));
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                labels.to(at::kLong).reshape({-1}),
                                /*weight=*/{}, at::Reduction::None, data::kIgnoreLabel)
      .view(labels.sizes());
}

}  // namespace hrm::objectives
