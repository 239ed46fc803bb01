#pragma once
// Splits examples without leakage: all examples with one key (one prompt, hrm/data/chat_dataset.h) go to one side.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hrm::data {

struct SplitOptions {
  std::vector<double> shares =
      {};  // of the keys, e.g. {0.9, 0.1, 0} for training, validation and test; they add up to 1
  uint64_t seed = 0;
  // A different purpose draws the same keys differently. Training, validation and test use "split".
  std::string purpose = "split";
  // One value per example; empty: not stratified. Otherwise keys are grouped into quartiles by the mean value of their
  // examples, and the shares are exact within each quartile. Keys without a value (NaN) form their own stratum.
  std::vector<double> values = {};
};

// Returns the examples of each side, ascending. `keys`: of all examples. `members`: the examples to split, ascending.
//
// Without stratification, the side of a key depends only on (seed, purpose, key), so adding examples moves no other
// key. With stratification, the keys of a stratum are cut in the order of the same draw, so adding examples moves few
// keys. Throws Error(usage) for invalid shares, and Error(data) if a side with a share above 0 gets no key.
std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, std::span<const int64_t> members,
                                               const SplitOptions& options);
// The same for all examples.
std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, const SplitOptions& options);

// Checks that no key is on two sides and no example occurs twice. Throws Error(data) naming the key.
void check_disjoint(const std::vector<std::string>& keys, const std::vector<std::vector<int64_t>>& sides);

// Quartile edges as in pandas.qcut: the quantiles 0, 1/4, 1/2, 3/4 and 1, interpolated linearly, without duplicates.
// `values`: at least one, without NaN.
std::vector<double> quartile_edges(std::vector<double> values);

}  // namespace hrm::data
