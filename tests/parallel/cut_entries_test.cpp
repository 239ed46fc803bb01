// Shards of parts of a model, as boxes of the whole.

#include "hrm/parallel/cut_entries.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hrm::parallel {
namespace {

using nn::CutBy;
using nn::ParameterCut;

struct LastPart : StateVisitor {
  void tensor(const std::string& /*name*/, at::Tensor& /*tensor*/, StateRole /*role*/, const StatePart& own) override {
    part = own;
  }
  void integer(const std::string& /*name*/, int64_t& /*value*/) override {}
  void real(const std::string& /*name*/, double& /*value*/) override {}
  StatePart part;
};

// For every element of a shard, in order: where it is in the whole.
std::vector<int64_t> places_of(const StatePart& part, int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(count), -1);
  for (const StateRun& run : runs_of(part, {count})) {
    for (int64_t i = 0; i < run.size; ++i) places[static_cast<size_t>(run.here + i)] = run.there + i;
  }
  return places;
}

// Every run of every part.
void expect_places(const std::vector<int64_t>& sizes, CutBy by, const std::vector<int64_t>& pieces, int64_t parts) {
  const at::Tensor whole = at::arange(count_of(sizes), at::kLong).view(sizes);
  for (int64_t number = 0; number < parts; ++number) {
    const NamedCuts cuts{{"w", ParameterCut{.by = by, .cut = {number, parts}, .pieces = pieces}}};
    const at::Tensor own = cuts.at("w").part_of(whole);
    const auto* elements = own.const_data_ptr<int64_t>();
    for (int64_t first = 0; first <= own.numel(); ++first) {
      for (int64_t count = 0; first + count <= own.numel(); ++count) {
        at::Tensor shard = at::empty({count});
        LastPart last;
        CutEntries entries(cuts, last);
        entries.tensor("optim.w.exp_avg", shard, StateRole::optimizer, run_part(own.sizes().vec(), first, count));
        ASSERT_EQ(last.part.sizes, sizes);
        ASSERT_EQ(places_of(last.part, count), std::vector<int64_t>(elements + first, elements + first + count))
            << part_text(last.part) << " of " << count << " from " << first << " of part " << number;
        // A few numbers, also for a matrix of many rows.
        ASSERT_LE(last.part.boxes.size(), by == CutBy::columns ? 2 * sizes.size() - 1 : pieces.size());
      }
    }
  }
}

TEST(CutEntries, ShardsOfParts) {
  expect_places({6, 4}, CutBy::rows, {6}, 2);
  expect_places({12}, CutBy::rows, {12}, 3);
  expect_places({12, 3}, CutBy::heads, {8, 2, 2}, 2);
  expect_places({8, 3}, CutBy::gate_up, {4, 4}, 4);
  expect_places({7, 3}, CutBy::vocabulary, {7}, 3);
  expect_places({5, 6}, CutBy::columns, {6}, 2);
  expect_places({4, 8}, CutBy::columns, {8}, 8);
  expect_places({3, 4, 2}, CutBy::columns, {4}, 2);
}

// What all parts hold, or is not cut, goes on as it is.
TEST(CutEntries, OthersAreLeftAlone) {
  const NamedCuts cuts{{"w", ParameterCut{}}};
  at::Tensor shard = at::empty({3});
  for (const char* name : {"w", "v"}) {
    LastPart last;
    CutEntries entries(cuts, last);
    entries.tensor(name, shard, StateRole::weight, run_part({4, 4}, 2, 3));
    EXPECT_EQ(last.part, run_part({4, 4}, 2, 3)) << name;
  }
}

}  // namespace
}  // namespace hrm::parallel
