#pragma once
// Token cross-entropy of puzzle models, averaged per sample, and the counts for accuracies, in one pass over the
// logits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace hrm::ops {

// - stablemax: p = s(x) / sum s(x) with s(x) = x + 1 for x >= 0, otherwise 1 / (1 - x + 1e-30) (Prieto et al.,
//   "Grokking at the Edge of Numerical Stability", arXiv 2501.04697).
// - softmax: p = exp(x) / sum exp(x).
enum class LossKind { stablemax, softmax };

// Arithmetic of stablemax. f64 is that of the official HRM and TRM code. softmax is always computed in float32.
enum class LossPrecision { f64, f32 };

inline constexpr int64_t kIgnoredToken = -100;

struct TokenLoss {
  at::Tensor loss;      // (B) float64 for stablemax in f64, otherwise float32: sum of -log p(label) / max(labelled, 1)
  at::Tensor labelled;  // (B) int32: tokens with a label
  at::Tensor right;     // (B) int32: labelled tokens whose first largest logit is that of the label
};

// logits: (B, L, V), float32, bfloat16 or float16 (float64 for tests), any strides (copied if V is not contiguous).
// labels: (B, S) int32, each kIgnoredToken or in 0..V-1 (unchecked on a GPU). They belong to the positions
// first..first+S-1. loss is differentiable once in logits. The gradient is (B, L, V) in their dtype, zero outside those
// positions. Keeps only logits and labels. Deterministic. Runs on the current stream; can be captured. Throws
// c10::Error that names the shapes.
TokenLoss token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first, LossKind kind,
                     LossPrecision precision);

// The gradient of the logits, where grad_loss (B) is the gradient of TokenLoss::loss.
at::Tensor token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision);

// -log p(label) of each token, 0 if the label is kIgnoredToken, in plain ATen operations. logits: (..., V), labels:
// (...). Returns (...) in the dtype of TokenLoss::loss. The second function returns the gradient of logits, given that
// of the result.
at::Tensor token_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, LossKind kind,
                               LossPrecision precision);
at::Tensor token_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& labels,
                                        LossKind kind, LossPrecision precision);

}  // namespace hrm::ops
