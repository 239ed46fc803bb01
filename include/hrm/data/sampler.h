#pragma once
// The order of training samples as a function of (seed, position): the only state is one integer.

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/data/dataset.h"

namespace hrm::data {

// A pseudo-random permutation of 0..n-1 without a table: a Feistel network over the next power of two, repeated until
// the result is below n. Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
class CounterPermutation {
 public:
  CounterPermutation(uint64_t seed, uint64_t epoch, uint64_t n);
  uint64_t operator()(uint64_t i) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t n_;
  int low_bits_, high_bits_;
  uint32_t keys_[kRounds];
};

// One row of the training stream.
struct SampleRef {
  int64_t example = 0;
  int64_t puzzle = 0;
  // Global index of the row, which seeds its augmentation: the visit number, plus k << 40 for row k > 0 of a visit.
  uint64_t sample = 0;
};

// Visits each group once per epoch, in a new order each time. As in the official loader, a visit draws one random
// puzzle of the group and a random subset of its examples without replacement. The subset is limited by the room left
// in the batch. Not thread-safe: the permutation of the last epoch is cached.
class GroupSampler {
 public:
  GroupSampler(std::shared_ptr<const PuzzleDataset> dataset, uint64_t seed);

  // Appends at most `room` rows of visit `visit` (0, 1, ...; epoch = visit / groups).
  void visit(int64_t visit, int64_t room, std::vector<SampleRef>& rows);
  // Appends the `size` rows of the batch that starts at visit `position`. Returns the position after it.
  int64_t batch(int64_t position, int64_t size, std::vector<SampleRef>& rows);

 private:
  std::shared_ptr<const PuzzleDataset> dataset_;
  uint64_t seed_;
  int64_t epoch_ = 0;
  CounterPermutation order_;
  std::vector<int64_t> subset_;
};

}  // namespace hrm::data
