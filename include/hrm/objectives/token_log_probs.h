#pragma once
// Log-probabilities of given tokens directly from hidden states. Use it for losses that are not weighted sums of
// log-probabilities; for those, chunked_cross_entropy is cheaper. Shapes: B rows, T tokens, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

// All (B, T) float32 (float64 with float64 hidden states); 0 where the id is data::kIgnoreLabel.
struct TokenLogProbs {
  at::Tensor log_p;    // log softmax(logits / temperature)[id]; differentiable
  at::Tensor entropy;  // of that distribution, in nats; not differentiable; undefined unless requested
};

// `hidden`: (B, T, D) in the head's compute dtype. `ids`: (B, T) int32 or int64, each data::kIgnoreLabel or in 0..V-1
// (unchecked on a GPU). `ids[b, t]` is the token that hidden[b, t] predicts; no shift is done here.
//
// The logits of `chunk` tokens exist at once, in the dtype of hidden; softmax and sums are float32. The backward pass
// recomputes them chunk by chunk. It adds the float32 gradient of the head's weight to the master's gradient buffer, as
// in hrm/ops/linear.h; nothing is computed for a frozen head. Saved between the passes: hidden and ids. Deterministic;
// does not synchronise and can be captured. Throws c10::Error that names the shapes.
TokenLogProbs token_log_probs(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids,
                              double temperature = 1, int64_t chunk = 4096, bool with_entropy = false);

}  // namespace hrm::objectives
