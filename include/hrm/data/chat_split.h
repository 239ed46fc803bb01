#pragma once
// Shares of examples without leakage: all examples of one key (hrm/data/chat_dataset.h: one prompt) are on one side.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hrm::data {

struct SplitOptions {
  std::vector<double> shares =
      {};  // of the keys, e.g. {0.9, 0.1, 0} for training, validation and test; they add up to 1
  uint64_t seed = 0;
  // Another purpose is another draw of the same keys. Training, validation and test are "split".
  std::string purpose = "split";
  // A value for each example; empty: not stratified. Otherwise each fraction is exact within each quarter of the keys,
  // ordered by the mean value of their examples. Keys without any value (NaN) are a stratum of their own.
  std::vector<double> values = {};
};

// The examples of each side, ascending. `keys`: of all examples; `members`: those to split, in ascending order.
//
// Not stratified, the side of a key is a function of only (seed, purpose, key): more or fewer examples move no other
// key. Stratified, the keys of a stratum are cut in the order of the same draw, so more examples move few. Throws
// Error(usage) for invalid fractions; Error(data) if a side with a fraction above 0 gets no key.
std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, std::span<const int64_t> members,
                                               const SplitOptions& options);
// The same of all examples.
std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, const SplitOptions& options);

// That no key is on two sides and no example twice. Throws Error(data) that names the key.
void check_disjoint(const std::vector<std::string>& keys, const std::vector<std::vector<int64_t>>& sides);

// Edges of quarters as pandas.qcut draws them: the quantiles 0, 1/4, 1/2, 3/4 and 1 between neighbouring values, equal
// ones left out. `values`: at least one, none of them NaN.
std::vector<double> quartile_edges(std::vector<double> values);

}  // namespace hrm::data
