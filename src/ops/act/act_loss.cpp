#include "hrm/ops/act_loss.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/act/act_loss_impl.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

namespace {

void check_q(const char* op, const at::Tensor& q) {
  TORCH_CHECK(q.dim() == 2 && q.size(1) == 2 && at::isFloatingType(q.scalar_type()), op,
              ": q must be (B, 2) of a floating-point dtype, got ", q.sizes(), " ", q.scalar_type());
}

void check_slots(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType type, const at::Tensor& q) {
  TORCH_CHECK(
      tensor.dim() == 1 && tensor.size(0) == q.size(0) && tensor.scalar_type() == type && tensor.device() == q.device(),
      op, ": ", name, " must be (B) ", type, " on ", q.device(), ", got ", tensor.sizes(), " ", tensor.scalar_type(),
      " on ", tensor.device(), " for q of shape ", q.sizes());
}

}  // namespace

void check_act_q_target(const at::Tensor& q, const at::Tensor& steps) {
  check_q("hrm::act_q_target", q);
  check_slots("hrm::act_q_target", "steps", steps, at::kInt, q);
}

void check_act_loss(const TokenLoss& tokens, const at::Tensor& q, const OptionalTensor& target) {
  constexpr const char* kOp = "hrm::act_loss";
  check_q(kOp, q);
  const at::ScalarType type = tokens.loss.scalar_type();
  TORCH_CHECK(type == at::kDouble || type == at::kFloat, kOp, ": the token loss has dtype ", type);
  check_slots(kOp, "token_loss", tokens.loss, type, q);
  check_slots(kOp, "labelled", tokens.labelled, at::kInt, q);
  check_slots(kOp, "right", tokens.right, at::kInt, q);
  if (target) check_slots(kOp, "target", *target, q.scalar_type(), q);
}

void check_act_slots(const at::Tensor& q, const at::Tensor& steps, const at::Tensor& halted) {
  check_slots("hrm::act_loss", "steps", steps, at::kInt, q);
  check_slots("hrm::act_loss", "halted", halted, at::kBool, q);
}

at::Tensor act_q_target(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)> op("hrm::act_q_target");
  return op(q, steps, max_steps);
}

ActLossSums act_loss(const TokenLoss& tokens, const at::Tensor& q, const OptionalTensor& target,
                     const at::Tensor& steps, const at::Tensor& halted) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                     const at::Tensor&, const OptionalTensor&, const at::Tensor&,
                                                     const at::Tensor&)>
      op("hrm::act_loss");
  const auto [loss, metrics] = op(tokens.loss, tokens.labelled, tokens.right, q, target, steps, halted);
  return {loss, metrics};
}

at::Tensor act_loss_backward(const at::Tensor& grad_loss, const TokenLoss& tokens, const at::Tensor& q,
                             const OptionalTensor& target) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const OptionalTensor&)>
      op("hrm::act_loss_backward");
  return op(grad_loss, tokens.loss, tokens.labelled, tokens.right, q, target);
}

namespace {

at::Tensor act_q_target_cpu(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps) {
  check_act_q_target(q, steps);
  return reference::act_q_target(q, steps, max_steps);
}

std::tuple<at::Tensor, at::Tensor> act_loss_cpu(const at::Tensor& token_loss, const at::Tensor& labelled,
                                                const at::Tensor& right, const at::Tensor& q,
                                                const OptionalTensor& target, const at::Tensor& steps,
                                                const at::Tensor& halted) {
  const TokenLoss tokens{token_loss, labelled, right};
  check_act_loss(tokens, q, target);
  check_act_slots(q, steps, halted);
  const ActLossSums out = reference::act_loss(tokens, q, target, steps, halted);
  return {out.loss, out.metrics};
}

at::Tensor act_loss_backward_cpu(const at::Tensor& grad_loss, const at::Tensor& token_loss, const at::Tensor& labelled,
                                 const at::Tensor& right, const at::Tensor& q, const OptionalTensor& target) {
  const TokenLoss tokens{token_loss, labelled, right};
  check_act_loss(tokens, q, target);
  return reference::act_loss_backward(grad_loss, tokens, q, target);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("act_q_target(Tensor q, Tensor steps, int max_steps) -> Tensor");
  m.def(
      "act_loss(Tensor token_loss, Tensor labelled, Tensor right, Tensor q, Tensor? target, Tensor steps, "
      "Tensor halted) -> (Tensor loss, Tensor metrics)");
  m.def(
      "act_loss_backward(Tensor grad_loss, Tensor token_loss, Tensor labelled, Tensor right, Tensor q, "
      "Tensor? target) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("act_q_target", &act_q_target_cpu);
  m.impl("act_loss", &act_loss_cpu);
  m.impl("act_loss_backward", &act_loss_backward_cpu);
}

}  // namespace hrm::ops
