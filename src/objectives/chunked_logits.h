#pragma once
// Common code of losses that pass hidden states to the head in chunks of tokens: logits in a reused buffer, and their
// backward pass. Shapes: N tokens, D width, V vocabulary.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

// Throws c10::Error that begins with `name` unless hidden is (N, D), weight (V, D) of the same dtype, and ids (N). Also
// throws unless chunk and temperature are positive.
void check_head_input(const char* name, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& ids,
                      int64_t chunk, double temperature);

// logits = hidden weight^T / temperature, in the dtype of hidden, rounded once.
class ChunkedLogits {
 public:
  ChunkedLogits(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk, double temperature);

  // Calls visit(first, logits) with the logits (count, V) of the tokens first, first + 1, ...; it may overwrite them.
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t first = 0; first < hidden_.size(0); first += chunk_) {
      visit(first, make(first, std::min(chunk_, hidden_.size(0) - first)));
    }
  }

 private:
  at::Tensor make(int64_t first, int64_t count) const;

  at::Tensor hidden_, weight_, buffer_;
  int64_t chunk_;
  double temperature_;
};

// ops::softmax_loss_() of a chunk. Of a head that is cut, each part calls it with the logits of its vocabulary; the
// parts exchange 12 bytes a row. `entropy`: if not null, set to the entropy (count) of each row, then 16 bytes.
at::Tensor head_loss_(const nn::LmHead& head, const at::Tensor& logits, const at::Tensor& labels,
                      const std::optional<at::Tensor>& weights, at::Tensor* entropy = nullptr);

// Gradients of hidden and of the head's weight, computed chunk by chunk from the gradient of hidden weight^T.
class HeadGradients {
 public:
  HeadGradients(const at::Tensor& hidden, const at::Tensor& weight, bool of_hidden, bool of_weight);

  // grad_logits: (count, V), for the tokens first, first + 1, ... Chunks must come in order, starting at token 0.
  void add(int64_t first, const at::Tensor& grad_logits);
  bool wanted() const { return of_hidden_.defined() || of_weight_.defined(); }

  const at::Tensor& of_hidden() const { return of_hidden_; }  // (N, D) in the dtype of hidden, or undefined
  const at::Tensor& of_weight() const { return of_weight_; }  // (V, D) float32 (float64 with float64), or undefined

 private:
  at::Tensor hidden_, weight_, of_hidden_, of_weight_;
};

// The largest absolute weight, 0-dim. Dividing by it makes the weights representable in float16.
at::Tensor largest_weight(const at::Tensor& weights);
// weights / largest in `type`; zeros where all are zero.
at::Tensor relative_weights(const at::Tensor& weights, const at::Tensor& largest, at::ScalarType type);

}  // namespace hrm::objectives
