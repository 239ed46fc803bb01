#pragma once
// What losses share that take hidden states to the head a chunk of tokens at a time: logits in one buffer that is used
// again, and the way back from their gradients. Shapes: N tokens, D width, V vocabulary.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

namespace hrm::objectives {

// Throws c10::Error that begins with `name` unless hidden is (N, D), weight (V, D), both of one dtype, ids (N), chunk
// and temperature positive.
void check_head_input(const char* name, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& ids,
                      int64_t chunk, double temperature);

// logits = hidden weight^T / temperature, in their dtype, rounded once.
class ChunkedLogits {
 public:
  ChunkedLogits(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk, double temperature);

  // visit(first, logits): those of the tokens first, first + 1, ... as (count, V); the visitor may overwrite them.
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

// Gradients of hidden and of the head's weight, from those of hidden weight^T, chunk by chunk.
class HeadGradients {
 public:
  HeadGradients(const at::Tensor& hidden, const at::Tensor& weight, bool of_hidden, bool of_weight);

  // grad_logits (count, V) of the tokens first, first + 1, ...; the chunks must come in order, from the first on.
  void add(int64_t first, const at::Tensor& grad_logits);
  bool wanted() const { return of_hidden_.defined() || of_weight_.defined(); }

  const at::Tensor& of_hidden() const { return of_hidden_; }  // (N, D) in the dtype of hidden, or undefined
  const at::Tensor& of_weight() const { return of_weight_; }  // (V, D) float32 (float64 with float64), or undefined

 private:
  at::Tensor hidden_, weight_, of_hidden_, of_weight_;
};

// What makes weights numbers of a size that float16 can hold: the largest of their absolute values, 0-dim.
at::Tensor largest_weight(const at::Tensor& weights);
// weights / largest in `type`; zeros where all are zero.
at::Tensor relative_weights(const at::Tensor& weights, const at::Tensor& largest, at::ScalarType type);

}  // namespace hrm::objectives
