#pragma once
// The next token of each row, from its logits: filters and draw, and the update of the rows. Nothing waits for the
// device or reads anything back. A row's result depends only on its own logits and draw: probability masses are whole
// numbers, whose sums do not depend on the order in which a device adds them.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Filters in the order of Hugging Face's generate(): temperature, top_k, top_p, min_p.
struct SamplingOptions {
  double temperature = 1;  // what logits are divided by; 0: the token with the greatest logit, filters have no effect
  int64_t top_k = 0;       // the k greatest logits stay, and all that equal the k-th; 0: all
  double top_p = 1;  // the fewest tokens, greatest first, of equal ones the lower, whose mass reaches top_p; 1: all
  double min_p = 0;  // tokens of at least min_p times the greatest probability; 0: all

  bool operator==(const SamplingOptions&) const = default;
};

// What stays, as probabilities: logits (B, V) float32 -> (B, V) float32, rows that sum to 1. Temperature above 0.
// Probabilities below 2^-40 of the greatest are 0. Plain ATen everywhere.
at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options);

// logits (B, V) of any floating type and row pitch, draws (B) float64 in [0, 1), undefined or unused at temperature 0
// -> (B) int64 in 0..V-1, or -1 for a row with a NaN or an infinite largest logit. At temperature 0 the lowest of equal
// ids. Computed in float32.
//
// On the current stream; can be captured; no gradient. On a GPU one kernel, a block or a cluster for each row, with the
// result of plain ATen there, which divides by multiplying with the float32 reciprocal. Throws c10::Error naming the
// shapes.
at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, const at::Tensor& draws);

// B rows that are being written. All contiguous.
struct WrittenRows {
  at::Tensor ids;     // (B) int64, written: the token, 0 where there is none
  at::Tensor count;   // (B) int64, written: tokens of the row so far
  at::Tensor limits;  // (B) int64, most that it may have
  at::Tensor active;  // (B) bool, written: whether the row continues
  at::Tensor draws;   // (B, N) float64, N > 0: the row's draw number `count`, or the last one; (B, 1) at temperature 0
  at::Tensor chosen;  // (B) int64, written: what sample_tokens gives; -2 of a row that was not active
  at::Tensor stop_ids;  // (at most 32) int64: a row ends with them
  // (B) float32, written: log softmax(logits / temperature) at the token, without filters; at temperature 0 of the
  // logits themselves. 0 for a row that was not active, NaN if there is no token. Undefined: not computed.
  at::Tensor log_p = {};
};

// One token more: sample_tokens, then the rows. The same kernel.
void next_tokens_(const at::Tensor& logits, const SamplingOptions& options, const WrittenRows& rows);

}  // namespace hrm::ops
