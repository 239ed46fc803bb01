#pragma once
// What the files of softmax_loss_part share: the input checks and the plain ATen reference.

#include "hrm/ops/softmax_loss.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first);
void check_softmax_loss_part(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& facts,
                             const std::optional<at::Tensor>& weights);

namespace reference {

at::Tensor softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean);
at::Tensor softmax_loss_part_(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                              const at::Tensor& facts, const std::optional<at::Tensor>& weights);

}  // namespace reference
}  // namespace hrm::ops
