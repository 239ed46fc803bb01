#pragma once
// The per-slot part of the loss of adaptive computation time (ACT): Q heads and metrics. The inputs have one number per
// slot, so plain ATen spends its time on kernel launches.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/ops/token_loss.h"

namespace hrm::ops {

// The target of q_continue for B slots: sigmoid(q_halt) where steps >= max_steps, otherwise
// sigmoid(max(q_halt, q_continue)). q: (B, 2) = [q_halt, q_continue] of one more segment, float32 (float64 for tests),
// any strides. steps: (B) int32. Returns (B) in q's dtype. Not differentiable.
at::Tensor act_q_target(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps);

inline constexpr int64_t kActMetrics = 8;
inline constexpr int64_t kActLosses = 3;  // the last of them

struct ActLossSums {
  at::Tensor loss;     // 0-dim, the dtype of TokenLoss::loss
  at::Tensor metrics;  // (kActMetrics) float64
};

// loss = sum over slots of (tokens.loss + (BCE(q_halt, all right) + BCE(q_continue, target)) / 2). Without a target,
// the BCE of q_continue is left out. "All right" means tokens.right == tokens.labelled. Both binary cross-entropies are
// of logits.
//
// metrics[0:5] are sums over the slots that have halted and have labelled tokens: 1, right / labelled, all right,
// (q_halt >= 0) == all right, steps. metrics[5:8] are sums over all slots: tokens.loss, BCE(q_halt), BCE(q_continue).
//
// tokens: from token_loss. q: (B, 2) float32 (float64 for tests). target: (B) like q. steps: (B) int32. halted: (B)
// bool. Differentiable once, in tokens.loss and q. Sums are float64 in a fixed order. Runs on the current stream; can
// be captured. Throws c10::Error that names the shapes.
ActLossSums act_loss(const TokenLoss& tokens, const at::Tensor& q, const std::optional<at::Tensor>& target,
                     const at::Tensor& steps, const at::Tensor& halted);

// The gradient of q, where grad_loss is the gradient of ActLossSums::loss. The gradient of tokens.loss is grad_loss for
// each slot.
at::Tensor act_loss_backward(const at::Tensor& grad_loss, const TokenLoss& tokens, const at::Tensor& q,
                             const std::optional<at::Tensor>& target);

}  // namespace hrm::ops
