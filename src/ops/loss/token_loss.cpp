#include "hrm/ops/token_loss.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/loss/token_loss_impl.h"

namespace hrm::ops {

void check_token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
  TORCH_CHECK(logits.dim() == 3 && labels.dim() == 2 && logits.size(0) == labels.size(0) && logits.size(2) >= 1,
              "hrm::token_loss: logits must have the shape (B, L, V) and labels (B, S), got ", logits.sizes(), " and ",
              labels.sizes());
  TORCH_CHECK(first >= 0 && first + labels.size(1) <= logits.size(1), "hrm::token_loss: positions ", first, " to ",
              first + labels.size(1), " of the labels ", labels.sizes(), " are not all in the logits ", logits.sizes());
  TORCH_CHECK(at::isFloatingType(logits.scalar_type()) && labels.scalar_type() == at::kInt,
              "hrm::token_loss: logits must have a floating-point dtype and labels int32, got ", logits.scalar_type(),
              " and ", labels.scalar_type(), " (shapes ", logits.sizes(), ", ", labels.sizes(), ")");
  TORCH_CHECK(logits.device() == labels.device(), "hrm::token_loss: logits are on ", logits.device(), ", labels on ",
              labels.device(), " (shapes ", logits.sizes(), ", ", labels.sizes(), ")");
}

void check_token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision) {
  check_token_loss(logits, labels, first);
  TORCH_CHECK(grad_loss.dim() == 1 && grad_loss.size(0) == logits.size(0) &&
                  grad_loss.scalar_type() == loss_type(kind, precision) && grad_loss.device() == logits.device(),
              "hrm::token_loss_backward: grad_loss must be (B) ", loss_type(kind, precision), " on ", logits.device(),
              ", got ", grad_loss.sizes(), " ", grad_loss.scalar_type(), " on ", grad_loss.device(),
              " for logits of shape ", logits.sizes());
}

TokenLoss token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first, LossKind kind,
                     LossPrecision precision) {
  static const Op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                                                                 int64_t)>
      op("hrm::token_loss");
  const auto [loss, labelled, right] =
      op(logits, labels, first, static_cast<int64_t>(kind), static_cast<int64_t>(precision));
  return {loss, labelled, right};
}

at::Tensor token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t)> op(
      "hrm::token_loss_backward");
  return op(grad_loss, logits, labels, first, static_cast<int64_t>(kind), static_cast<int64_t>(precision));
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> token_loss_cpu(const at::Tensor& logits, const at::Tensor& labels,
                                                              int64_t first, int64_t kind, int64_t precision) {
  check_token_loss(logits, labels, first);
  const TokenLoss out =
      reference::token_loss(logits, labels, first, static_cast<LossKind>(kind), static_cast<LossPrecision>(precision));
  return {out.loss, out.labelled, out.right};
}

at::Tensor token_loss_backward_cpu(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                                   int64_t first, int64_t kind, int64_t precision) {
  const auto k = static_cast<LossKind>(kind);
  const auto p = static_cast<LossPrecision>(precision);
  check_token_loss_backward(grad_loss, logits, labels, first, k, p);
  return reference::token_loss_backward(grad_loss, logits, labels, first, k, p);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "token_loss(Tensor logits, Tensor labels, int first, int kind, int precision) -> "
      "(Tensor loss, Tensor labelled, Tensor right)");
  m.def(
      "token_loss_backward(Tensor grad_loss, Tensor logits, Tensor labels, int first, int kind, int precision) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("token_loss", &token_loss_cpu);
  m.impl("token_loss_backward", &token_loss_backward_cpu);
}

}  // namespace hrm::ops
