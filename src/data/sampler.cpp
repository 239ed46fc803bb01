#include "hrm/data/sampler.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"

namespace hrm::data {
namespace {

uint32_t mix_round(uint32_t x) {  // finalizer of murmur3
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace

CounterPermutation::CounterPermutation(uint64_t seed, uint64_t epoch, uint64_t n) : n_(n) {
  require(n >= 1 && n <= uint64_t{1} << 40, ExitCode::unexpected, "permutation of ", n, " things");
  const int bits = std::max(2, static_cast<int>(std::bit_width(n - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  CounterRng rng(seed, Stream::sample_order, epoch);
  for (uint32_t& key : keys_) key = rng.next();
}

uint64_t CounterPermutation::operator()(uint64_t i) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  do {
    // The halves may differ by one bit, so they stay in place and are changed alternately.
    uint64_t low = i & low_mask, high = i >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      low ^= mix_round(static_cast<uint32_t>(high) ^ keys_[round]) & low_mask;
      high ^= mix_round(static_cast<uint32_t>(low) ^ keys_[round + 1]) & high_mask;
    }
    i = high << low_bits_ | low;
  } while (i >= n_);
  return i;
}

GroupSampler::GroupSampler(std::shared_ptr<const PuzzleDataset> dataset, uint64_t seed)
    : dataset_(std::move(dataset)), seed_(seed), order_(seed, 0, static_cast<uint64_t>(dataset_->num_groups())) {}

void GroupSampler::visit(int64_t visit, int64_t room, std::vector<SampleRef>& rows) {
  const int64_t groups = dataset_->num_groups();
  if (visit / groups != epoch_) {
    epoch_ = visit / groups;
    order_ = CounterPermutation(seed_, static_cast<uint64_t>(epoch_), static_cast<uint64_t>(groups));
  }
  const int64_t group = static_cast<int64_t>(order_(static_cast<uint64_t>(visit % groups)));
  const IndexRange puzzles = dataset_->puzzles_of_group(group);
  CounterRng rng(seed_, Stream::puzzle_choice, static_cast<uint64_t>(visit));
  const int64_t puzzle = puzzles.begin + (puzzles.size() > 1 ? rng.below(static_cast<uint32_t>(puzzles.size())) : 0);
  const IndexRange examples = dataset_->examples_of_puzzle(puzzle);
  const int64_t count = std::min(examples.size(), room);
  if (examples.size() == 1) {
    rows.push_back({examples.begin, puzzle, static_cast<uint64_t>(visit)});
    return;
  }
  subset_.resize(examples.size());
  std::iota(subset_.begin(), subset_.end(), examples.begin);
  for (int64_t k = 0; k < count; ++k) {
    std::swap(subset_[k], subset_[k + rng.below(static_cast<uint32_t>(examples.size() - k))]);
    rows.push_back({subset_[k], puzzle, static_cast<uint64_t>(visit) + (static_cast<uint64_t>(k) << 40)});
  }
}

int64_t GroupSampler::batch(int64_t position, int64_t size, std::vector<SampleRef>& rows) {
  const size_t end = rows.size() + static_cast<size_t>(size);
  while (rows.size() < end) visit(position++, static_cast<int64_t>(end - rows.size()), rows);
  return position;
}

}  // namespace hrm::data
