#pragma once
// What the files of softmax_loss share: the input checks and the plain ATen reference.

#include "hrm/ops/softmax_loss.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_softmax_loss(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights);

namespace reference {

at::Tensor softmax_loss_(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights);

}  // namespace reference
}  // namespace hrm::ops
