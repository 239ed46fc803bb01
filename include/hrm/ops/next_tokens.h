#pragma once
// Sampling of the next token of each row from its logits, and the update of the rows. Nothing waits for the device or
// reads back from it. A row's result depends only on its own logits and draw: probability masses are integers, so their
// sums do not depend on the order of additions.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Filters in the order of Hugging Face's generate(): temperature, top_k, top_p, min_p.
struct SamplingOptions {
  double temperature = 1;  // divides the logits; 0: greedy, the filters have no effect
  int64_t top_k = 0;       // keep the k greatest logits and all ties with the k-th; 0: all
  double top_p = 1;  // keep the fewest tokens, greatest first, lower id first among equals, with mass >= top_p; 1: all
  double min_p = 0;  // keep tokens with at least min_p times the greatest probability; 0: all

  bool operator==(const SamplingOptions&) const = default;
};

// The filtered probabilities: logits (B, V) float32 -> (B, V) float32, rows that sum to 1. Temperature above 0.
// Probabilities below 2^-40 of the greatest are 0. Plain ATen on every device.
at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options);

// logits: (B, V) of any floating type and row pitch. draws: (B) float64 in [0, 1), unused at temperature 0, where it
// may be undefined. Returns (B) int64 in 0..V-1, or -1 for a row with a NaN or an infinite largest logit. At
// temperature 0, returns the lowest id among equal logits. Computed in float32.
//
// Runs on the current stream; can be captured; no gradient. On a GPU, one kernel with a block or a cluster per row. It
// gives the result of plain ATen on the GPU, which divides by multiplying with the float32 reciprocal. Throws
// c10::Error that names the shapes.
at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, const at::Tensor& draws);

// B rows in generation. All tensors are contiguous.
struct WrittenRows {
  at::Tensor ids;     // (B) int64, written: the token; 0 if there is none
  at::Tensor count;   // (B) int64, written: tokens of the row so far
  at::Tensor limits;  // (B) int64: the most tokens that the row may have
  at::Tensor active;  // (B) bool, written: whether the row continues
  at::Tensor draws;   // (B, N) float64, N > 0: the row's draw number `count`, or the last one; (B, 1) at temperature 0
  at::Tensor chosen;  // (B) int64, written: the result of sample_tokens; -2 for a row that was not active
  at::Tensor stop_ids;  // (at most 32) int64: each of them ends a row
  // (B) float32, written: log softmax(logits / temperature) at the token, without filters; at temperature 0, of the
  // logits themselves. 0 for a row that was not active, NaN if there is no token. Undefined: not computed.
  at::Tensor log_p = {};
};

// Appends one token to each row: sample_tokens, then the update of the rows, in the same kernel.
void next_tokens_(const at::Tensor& logits, const SamplingOptions& options, const WrittenRows& rows);

}  // namespace hrm::ops
