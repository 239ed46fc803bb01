#pragma once
// Softmax cross-entropy of a large vocabulary, with its gradient in the same pass. For losses that compute the logits
// of some tokens at a time and do not keep them.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// Returns loss (N): logsumexp(logits) - logits[label], or 0 if the label is kIgnoredToken (hrm/ops/token_loss.h). If
// `weights` are given, overwrites logits with the gradient of sum(weights * loss), rounded once:
//   weights * (softmax(logits) - onehot(label)), or 0 if the label is kIgnoredToken
// Without weights, logits are unchanged.
//
// logits: (N, V) float32, bfloat16 or float16 (float64 for tests); rows are contiguous, at any distance. labels: (N)
// int32 or int64, each kIgnoredToken or in 0..V-1 (unchecked on a GPU). weights: (N) and loss: float32 (float64 with
// float64 logits). All arithmetic is float32. No derivative (asking for one is an error). Deterministic. Runs on the
// current stream; can be captured. On a GPU, rows that fit into shared memory (116,000 16-bit logits on an H200) are
// read once. Throws c10::Error that names the shapes.
at::Tensor softmax_loss_(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights);

}  // namespace hrm::ops
