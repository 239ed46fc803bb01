// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/act/act_loss_impl.h"

namespace hrm::ops::reference {

at::Tensor act_q_target(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps) {
  const at::Tensor halt = q.select(1, 0), go_on = q.select(1, 1);
  return at::sigmoid(at::where(steps.ge(max_steps), halt, at::maximum(halt, go_on)));
}

ActLossSums act_loss(const TokenLoss& tokens, const at::Tensor& q, const std::optional<at::Tensor>& target,
                     const at::Tensor& steps, const at::Tensor& halted) {
  const auto bce = [](const at::Tensor& logit, const at::Tensor& wanted) {
    return at::binary_cross_entropy_with_logits(logit, wanted, /*weight=*/{}, /*pos_weight=*/{}, at::Reduction::Sum);
  };
  const at::Tensor q_halt = q.select(1, 0);
  const at::Tensor all_right = tokens.right.eq(tokens.labelled);
  const at::Tensor lm_loss = tokens.loss.sum();
  const at::Tensor q_halt_loss = bce(q_halt, all_right.to(q.scalar_type()));
  const at::Tensor q_continue_loss = target ? bce(q.select(1, 1), *target) : at::zeros_like(q_halt_loss);

  const at::Tensor counted = halted.logical_and(tokens.labelled.gt(0));
  const auto over_counted = [&](const at::Tensor& value) { return value.to(at::kDouble).mul(counted).sum(); };
  const at::Tensor accuracy = tokens.right.to(at::kDouble) / tokens.labelled.clamp_min(1);
  return {.loss = (lm_loss + 0.5 * (q_halt_loss + q_continue_loss)).to(tokens.loss.scalar_type()),
          .metrics = at::stack({counted.sum().to(at::kDouble), over_counted(accuracy), over_counted(all_right),
                                over_counted(q_halt.ge(0).eq(all_right)), over_counted(steps), lm_loss.to(at::kDouble),
                                q_halt_loss.to(at::kDouble), q_continue_loss.to(at::kDouble)})};
}

// dBCE(x, t)/dx = sigmoid(x) - t.
at::Tensor act_loss_backward(const at::Tensor& grad_loss, const TokenLoss& tokens, const at::Tensor& q,
                             const std::optional<at::Tensor>& target) {
  const at::Tensor scale = (0.5 * grad_loss).to(q.scalar_type());
  const at::Tensor wanted = tokens.right.eq(tokens.labelled).to(q.scalar_type());
  at::Tensor grad = at::zeros(q.sizes(), q.options());
  grad.select(1, 0).copy_((at::sigmoid(q.select(1, 0)) - wanted) * scale);
  if (target) grad.select(1, 1).copy_((at::sigmoid(q.select(1, 1)) - *target) * scale);
  return grad;
}

}  // namespace hrm::ops::reference
