#include "hrm/data/chat_split.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "data/data_support.h"

namespace hrm::data {
namespace {

using Sides = std::vector<std::vector<int64_t>>;

// Key k<i> stands i % 4 + 1 times, in turns.
std::vector<std::string> some_keys(int groups) {
  std::vector<std::string> keys;
  for (int turn = 0; turn < 4; ++turn) {
    for (int i = 0; i < groups; ++i) {
      if (i % 4 >= turn) keys.push_back("k" + std::to_string(i));
    }
  }
  return keys;
}

std::map<std::string, size_t> side_of_keys(const std::vector<std::string>& keys, const Sides& sides) {
  std::map<std::string, size_t> result;
  for (size_t side = 0; side < sides.size(); ++side) {
    for (const int64_t i : sides[side]) {
      const auto [found, is_new] = result.emplace(keys[i], side);
      EXPECT_EQ(found->second, side) << keys[i] << " is on two sides";
    }
  }
  return result;
}

TEST(ChatSplit, AllExamplesOfAKeyAreOnOneSide) {
  const auto keys = some_keys(2000);
  const Sides sides = split_groups(keys, {.shares = {0.8, 0.15, 0.05}, .seed = 3});
  size_t total = 0;
  for (const auto& side : sides) {
    EXPECT_TRUE(std::is_sorted(side.begin(), side.end()));
    total += side.size();
  }
  EXPECT_EQ(total, keys.size());
  std::vector<int> counts(3);
  for (const auto& [key, side] : side_of_keys(keys, sides)) ++counts[side];
  EXPECT_NEAR(counts[0], 1600, 60);
  EXPECT_NEAR(counts[1], 300, 50);
  EXPECT_NEAR(counts[2], 100, 35);
}

TEST(ChatSplit, MoreExamplesMoveNoOthers) {
  const auto few = some_keys(500), many = some_keys(900);
  const SplitOptions options{.shares = {0.7, 0.2, 0.1}, .seed = 8};
  const auto before = side_of_keys(few, split_groups(few, options));
  auto after = side_of_keys(many, split_groups(many, options));
  for (const auto& [key, side] : before) EXPECT_EQ(after[key], side) << key;
}

TEST(ChatSplit, SeedAndPurposeAreOtherDraws) {
  const auto keys = some_keys(300);
  SplitOptions options{.shares = {0.5, 0.5}, .seed = 8};
  const Sides one = split_groups(keys, options);
  EXPECT_EQ(split_groups(keys, options), one);
  options.seed = 9;
  EXPECT_NE(split_groups(keys, options), one);
  options.seed = 8;
  options.purpose = "phases";
  // Phases of a side: each half of it is about half of the other draw's sides.
  const Sides phases = split_groups(keys, one[0], options);
  EXPECT_EQ(phases[0].size() + phases[1].size(), one[0].size());
  EXPECT_NEAR(static_cast<double>(phases[0].size()), one[0].size() / 2.0, one[0].size() / 6.0);
  for (const auto& phase : phases) {
    for (const int64_t i : phase) EXPECT_TRUE(std::binary_search(one[0].begin(), one[0].end(), i));
  }
  side_of_keys(keys, phases);
}

TEST(ChatSplit, StratifiedSharesAreExactInEveryQuarter) {
  const auto keys = some_keys(400);
  SplitOptions options{.shares = {0.75, 0.25}, .seed = 4};
  for (const std::string& key : keys) options.values.push_back(std::stod(key.substr(1)) * 0.5);
  const Sides sides = split_groups(keys, options);
  std::vector<std::vector<int>> counts(2, std::vector<int>(4));
  for (const auto& [key, side] : side_of_keys(keys, sides)) ++counts[side][std::stoi(key.substr(1)) / 100];
  EXPECT_EQ(counts[0], (std::vector<int>{75, 75, 75, 75}));
  EXPECT_EQ(counts[1], (std::vector<int>{25, 25, 25, 25}));
}

TEST(ChatSplit, KeysWithoutAValueAreAStratumOfTheirOwn) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::string> keys;
  SplitOptions options{.shares = {0.5, 0.5}, .seed = 4};
  for (int i = 0; i < 40; ++i) {
    keys.push_back("k" + std::to_string(i));
    options.values.push_back(i < 20 ? 1.0 : kNone);  // one value: one quarter
  }
  std::vector<int> valued(2);
  for (const auto& [key, side] : side_of_keys(keys, split_groups(keys, options))) {
    valued[side] += std::stoi(key.substr(1)) < 20;
  }
  EXPECT_EQ(valued, (std::vector<int>{10, 10}));
  options.values.assign(40, kNone);
  const Sides none = split_groups(keys, options);
  EXPECT_EQ(none[0].size(), 20u);
}

// numpy.unique(numpy.quantile(values, [0, .25, .5, .75, 1]))
TEST(ChatSplit, QuartilesAreThoseOfPandas) {
  EXPECT_EQ(quartile_edges({5, 1, 3, 2, 4}), (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ(quartile_edges({1, 2, 3, 4}), (std::vector<double>{1, 1.75, 2.5, 3.25, 4}));
  EXPECT_EQ(quartile_edges({0, 0, 0, 0, 0, 8}), (std::vector<double>{0, 8}));
  EXPECT_EQ(quartile_edges({7}), (std::vector<double>{7}));
}

TEST(ChatSplit, OneSideMayHaveNoShare) {
  const auto keys = some_keys(50);
  const Sides sides = split_groups(keys, {.shares = {0, 1, 0}});
  EXPECT_TRUE(sides[0].empty() && sides[2].empty());
  EXPECT_EQ(sides[1].size(), keys.size());
}

TEST(ChatSplit, RefusesSharesThatAreNone) {
  const std::vector<std::string> keys = {"a", "b"};
  const auto refused = [&](std::vector<double> shares, ExitCode code, const std::vector<std::string>& parts) {
    expect_error(code, parts, [&] { split_groups(keys, {.shares = shares, .seed = 1}); });
  };
  refused({}, ExitCode::usage, {"add up to 0"});
  refused({0.5, 0.4}, ExitCode::usage, {"add up to 0.9"});
  refused({1.5, -0.5}, ExitCode::usage, {"a share of the data is -0.5"});
  refused({std::nan(""), 1}, ExitCode::usage, {"a share of the data is nan"});
  refused({0.25, 0.25, 0.25, 0.25}, ExitCode::data,
          {"none of the 2 prompts was drawn for a share of 0.25", "each of the 4 sides needs one", "chat.val_share=0"});
  refused({0.001, 0.999}, ExitCode::data, {"was drawn for a share of 0.001", "a larger share or another seed"});
  expect_error(ExitCode::data, {"the only prompt was not drawn", "each of the 2 sides needs one: give more prompts"},
               [] {
                 split_groups({"a"}, {.shares = {0.9, 0.1, 0}});
               });
}

TEST(ChatSplit, LeakageIsFound) {
  const std::vector<std::string> keys = {"a", "b", "a", "c"};
  check_disjoint(keys, {{0, 2}, {1, 3}});
  check_disjoint(keys, {{0, 2}, {1}});
  expect_error(ExitCode::data, {"the prompt 'a' is on two sides of the split, 0 and 1"}, [&] {
    check_disjoint(keys, {{0}, {1, 2}});
  });
  expect_error(ExitCode::data, {"example 1 of 'b' is split off twice"}, [&] { check_disjoint(keys, {{1}, {1}}); });
}

}  // namespace
}  // namespace hrm::data
