#pragma once
// Softmax cross-entropy of a large vocabulary, with its gradient in the same pass. For losses that compute the logits
// of some tokens at a time and do not keep them.

#include <ATen/core/Tensor.h>

#include <cstdint>
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

// The same over a vocabulary that is cut into parts, in two steps, with the same inputs, no derivative either, and on a
// GPU one pass each. A part has the logits of the tokens `first` to first + V - 1. softmax_loss_facts() returns what
// the others need of its rows, (N, 3) float32 (float64 with float64 logits): the largest logit, the sum of exp(logit -
// largest), and the label's logit, 0 if the label is another part's. With `with_mean` a fourth column: the sum of
// exp(logit - largest) * (logit - largest).
at::Tensor softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                              bool with_mean = false);
// `facts`: those of all parts, (parts, N, 3 or 4), which are added in the order of parts. Returns the loss of the whole
// vocabulary, and with `weights` overwrites the part's logits with their gradient, as softmax_loss_().
at::Tensor softmax_loss_part_(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                              const at::Tensor& facts, const std::optional<at::Tensor>& weights);
// Entropy (N) of the softmax of the whole vocabulary, from facts with_mean.
at::Tensor softmax_entropy(const at::Tensor& facts);

}  // namespace hrm::ops
