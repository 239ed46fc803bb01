#pragma once
// Softmax cross-entropy directly from hidden states. It works on one chunk of tokens at a time, so the logits of all
// tokens never exist at once. Shapes: N tokens, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

struct ChunkedCrossEntropy {
  at::Tensor loss;       // 0-dim float32: sum over tokens of weights * cross-entropy; differentiable
  at::Tensor per_token;  // (N) float32: cross-entropy, 0 where the label is data::kIgnoreLabel; not differentiable
};

// `hidden`: (N, D) in the head's compute dtype. `labels`: (N) int32 or int64, each data::kIgnoreLabel or in 0..V-1
// (unchecked on a GPU). `weights`: (N) float32 of any sign, no gradient, e.g. 1 / number of labelled tokens, or an
// advantage. The logits are divided by `temperature`.
//
// GEMMs run in the dtype of hidden, softmax and sums in float32. The forward pass also computes the gradients of hidden
// and of the head's weight, chunk by chunk; the latter is accumulated in float32. The backward pass scales them and
// adds the weight's to the master's gradient buffer, as in hrm/ops/linear.h.
//
// Saved, if trained: (N, D) in the dtype of hidden and (V, D) in float32. Temporary memory: one chunk x V tensor in the
// dtype of hidden (on the CPU and with ops.backend=reference three in float32). Without gradient mode only the values
// are computed. Deterministic; does not synchronise and can be captured. Throws c10::Error that names the shapes.
ChunkedCrossEntropy chunked_cross_entropy(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& labels,
                                          const at::Tensor& weights, int64_t chunk = 4096, double temperature = 1);

}  // namespace hrm::objectives
