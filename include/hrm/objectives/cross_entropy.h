#pragma once
// Per-token cross-entropy.

#include <ATen/core/Tensor.h>

#include "hrm/ops/token_loss.h"

namespace hrm::objectives {

using ops::LossKind;
using ops::LossPrecision;

// log(s(x) / sum s(x)) over the last dimension, with s(x) = x + 1 for x >= 0, otherwise 1 / (1 - x + 1e-30). Stablemax
// replaces softmax and does not collapse (Prieto et al., "Grokking at the Edge of Numerical Stability", arXiv
// 2501.04697). Computed in `precision`; not differentiable.
at::Tensor log_stablemax(const at::Tensor& logits, LossPrecision precision);

// -log p(label) of each token, 0 where the label is data::kIgnoreLabel.
//    logits (..., V) any floating type; labels (...) integer, each kIgnoreLabel or in 0..V-1 (unchecked on a GPU).
// Returns (...): float64 for stablemax in f64, otherwise float32 (softmax is always float32). Differentiable in logits,
// with a gradient of their dtype. Saves only its inputs for the backward pass.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, LossKind kind, LossPrecision precision);

}  // namespace hrm::objectives
