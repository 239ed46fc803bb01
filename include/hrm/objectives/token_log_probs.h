#pragma once
// Log-probabilities of given tokens straight from hidden states, for losses that are not sums of weights times
// log-probabilities (for those chunked_cross_entropy is cheaper). Shapes: B rows, T tokens, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

// All (B, T) float32 (float64 with float64 hidden states); 0 where the id is data::kIgnoreLabel.
struct TokenLogProbs {
  at::Tensor log_p;    // log softmax(logits / temperature)[id]; differentiable
  at::Tensor entropy;  // of that distribution, in nats; not differentiable; undefined unless asked for
};

// hidden (B, T, D) in the head's compute dtype; ids (B, T) int32 or int64, each data::kIgnoreLabel or in 0..V-1
// (unchecked on a GPU): the target of hidden[b, t] (no shift is done here).
//
// The logits of `chunk` tokens exist at one time, in the dtype of hidden; softmax and sums are float32. The backward
// pass recomputes them chunk by chunk, and adds the gradient of the head's weight, float32, to the master's buffer (as
// hrm/ops/linear.h does). Nothing is computed for a frozen head. Kept between the passes: hidden, ids. Deterministic;
// waits for nothing and can be captured. Throws c10::Error that names the shapes.
TokenLogProbs token_log_probs(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids,
                              double temperature = 1, int64_t chunk = 4096, bool with_entropy = false);

}  // namespace hrm::objectives
