#pragma once
// What the files of token_loss share: the input checks and the plain ATen reference.

#include "hrm/ops/token_loss.h"

namespace hrm::ops {

// The dtype in which the loss is computed and returned.
inline at::ScalarType loss_type(LossKind kind, LossPrecision precision) {
  return kind == LossKind::stablemax && precision == LossPrecision::f64 ? at::kDouble : at::kFloat;
}

// Throw c10::Error with the op's name and the shapes.
void check_token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first);
void check_token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision);

namespace reference {

TokenLoss token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first, LossKind kind,
                     LossPrecision precision);
at::Tensor token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision);

}  // namespace reference
}  // namespace hrm::ops
