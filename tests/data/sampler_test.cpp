#include "hrm/data/sampler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data/data_support.h"

namespace hrm::data {
namespace {

TEST(CounterPermutation, IsAPermutation) {
  for (const uint64_t n : {1, 2, 3, 7, 64, 65, 1000, 4097}) {
    const CounterPermutation order(5, 2, n);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) seen.insert(order(i));
    EXPECT_EQ(seen.size(), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
}

TEST(CounterPermutation, DependsOnSeedAndEpoch) {
  const auto list = [](uint64_t seed, uint64_t epoch) {
    const CounterPermutation order(seed, epoch, 100);
    std::vector<uint64_t> values(100);
    for (uint64_t i = 0; i < 100; ++i) values[i] = order(i);
    return values;
  };
  EXPECT_EQ(list(1, 1), list(1, 1));
  EXPECT_NE(list(1, 1), list(1, 2));
  EXPECT_NE(list(1, 1), list(2, 1));
}

// Over epochs, every group is equally likely at every place.
TEST(CounterPermutation, IsUniform) {
  constexpr int kGroups = 12, kEpochs = 12000;
  int counts[kGroups][kGroups] = {};
  int ascents = 0;
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const CounterPermutation order(3, epoch, kGroups);
    for (uint64_t i = 0; i < kGroups; ++i) ++counts[i][order(i)];
    ascents += order(0) < order(1);
  }
  for (const auto& place : counts) {
    for (const int count : place) EXPECT_NEAR(count, 1000, 160);  // standard deviation 30
  }
  EXPECT_NEAR(ascents, kEpochs / 2, 300);
}

TEST(GroupSampler, VisitsEachGroupOncePerEpoch) {
  GroupSampler sampler(single_dataset(37), 9);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<SampleRef> rows;
    EXPECT_EQ(sampler.batch(epoch * 37, 37, rows), (epoch + 1) * 37);
    std::set<int64_t> seen;
    for (size_t i = 0; i < rows.size(); ++i) {
      seen.insert(rows[i].example);
      EXPECT_EQ(rows[i].sample, static_cast<uint64_t>(epoch * 37) + i);  // row i is visit i
    }
    EXPECT_EQ(seen.size(), 37u);
  }
}

TEST(GroupSampler, RestartsAnywhere) {
  const auto dataset = grouped_dataset({{1, 3}, {2}, {4, 4, 1}, {1}, {6}});
  GroupSampler straight(dataset, 4);
  int64_t position = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<SampleRef> want, got;
    const int64_t next = straight.batch(position, 5, want);
    GroupSampler fresh(dataset, 4);
    EXPECT_EQ(fresh.batch(position, 5, got), next);
    ASSERT_EQ(want.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(got[i].example, want[i].example);
      EXPECT_EQ(got[i].sample, want[i].sample);
    }
    position = next;
  }
}

// As the official loader: one puzzle per visit, its examples without repetition, truncated at the end of the batch.
TEST(GroupSampler, PacksPuzzlesOfSeveralExamples) {
  const auto dataset = grouped_dataset({{3, 2}, {3}, {1}});
  GroupSampler sampler(dataset, 1);
  std::map<int64_t, int> puzzles;
  std::set<uint64_t> samples;
  for (int64_t visit = 0; visit < 300; ++visit) {
    std::vector<SampleRef> rows;
    sampler.visit(visit, 100, rows);
    const int64_t puzzle = rows.at(0).puzzle;
    ++puzzles[puzzle];
    EXPECT_EQ(static_cast<int64_t>(rows.size()), dataset->examples_of_puzzle(puzzle).size());
    std::set<int64_t> examples;
    for (const SampleRef& row : rows) {
      EXPECT_EQ(row.puzzle, puzzle);
      EXPECT_EQ(dataset->puzzle_of_example(row.example), puzzle);
      examples.insert(row.example);
      EXPECT_TRUE(samples.insert(row.sample).second);
    }
    EXPECT_EQ(examples.size(), rows.size());
  }
  EXPECT_NEAR(puzzles[0], 50, 25);  // puzzles 0 and 1 share the first group
  EXPECT_EQ(puzzles[0] + puzzles[1], 100);
  EXPECT_EQ(puzzles[2], 100);
  std::vector<SampleRef> rows;
  sampler.visit(0, 1, rows);
  EXPECT_EQ(rows.size(), 1u);
}

}  // namespace
}  // namespace hrm::data
