#pragma once
// How tokens are chosen (ops/next_tokens.h does it) and what their draws are.

#include <cstdint>
#include <vector>

#include "hrm/ops/next_tokens.h"

namespace hrm::tasks {

using ops::filtered_probabilities;
using ops::sample_tokens;
using ops::SamplingOptions;

// Error(usage) naming a value that is out of its range.
void check(const SamplingOptions& options);

// The draws of a row, of its positions 0..count-1 in turn: a function of (seed, key, position) alone; multiples of
// 2^-53 in [0, 1). `key`: which row it is, whatever batch it runs in.
std::vector<double> sampling_draws(uint64_t seed, uint64_t key, int64_t count);

}  // namespace hrm::tasks
