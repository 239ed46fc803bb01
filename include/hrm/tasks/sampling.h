#pragma once
// The next token of each row, from its logits. Nothing waits for the device or reads anything back, so all of it can be
// captured in a CUDA graph. What a row gives depends on its own logits and its own draw alone: masses are whole
// numbers, whose sums do not depend on the order in which a device adds them. Shapes: B rows, V vocabulary, N draws of
// a row.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hrm::tasks {

// Filters in the order of Hugging Face's generate(): temperature, top_k, top_p, min_p.
struct SamplingOptions {
  double temperature = 1;  // what logits are divided by; 0: the token with the greatest logit, filters have no effect
  int64_t top_k = 0;       // the k greatest logits stay, and all that equal the k-th; 0: all
  double top_p = 1;  // the fewest tokens, greatest first, of equal ones the lower, whose mass reaches top_p; 1: all
  double min_p = 0;  // tokens of at least min_p times the greatest probability; 0: all

  bool operator==(const SamplingOptions&) const = default;
};
// Error(usage) naming a value that is out of its range.
void check(const SamplingOptions& options);

// What stays, as probabilities: logits (B, V) float32 -> (B, V) float32, rows that sum to 1. Temperature above 0.
// Probabilities below 2^-40 of the greatest are 0.
at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options);

// logits (B, V) float32, draws (B) float64 in [0, 1), without use at temperature 0 -> (B) int64 in 0..V-1, or -1 for a
// row with a NaN or whose greatest logit is infinite. At temperature 0 the lowest of equal ids.
at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, const at::Tensor& draws);

// The draws of a row, of its positions 0..count-1 in turn: a function of (seed, key, position) alone; multiples of
// 2^-53 in [0, 1). `key`: which row it is, whatever batch it runs in.
std::vector<double> sampling_draws(uint64_t seed, uint64_t key, int64_t count);

}  // namespace hrm::tasks
