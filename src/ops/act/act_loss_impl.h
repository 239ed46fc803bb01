#pragma once
// What the files of act_loss share: the input checks and the plain ATen reference.

#include "hrm/ops/act_loss.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_act_q_target(const at::Tensor& q, const at::Tensor& steps);
void check_act_loss(const TokenLoss& tokens, const at::Tensor& q, const std::optional<at::Tensor>& target);
void check_act_slots(const at::Tensor& q, const at::Tensor& steps, const at::Tensor& halted);

namespace reference {

at::Tensor act_q_target(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps);
ActLossSums act_loss(const TokenLoss& tokens, const at::Tensor& q, const std::optional<at::Tensor>& target,
                     const at::Tensor& steps, const at::Tensor& halted);
at::Tensor act_loss_backward(const at::Tensor& grad_loss, const TokenLoss& tokens, const at::Tensor& q,
                             const std::optional<at::Tensor>& target);

}  // namespace reference
}  // namespace hrm::ops
