#include "commands/data/puzzle_groups.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/data/dihedral.h"

namespace hrm::data {
namespace {

// A question with its shape, as a key.
std::string question_key(const PuzzleRecord& record) {
  return std::to_string(record.rows) + ":" + std::string(record.question.begin(), record.question.end());
}

// The same for all questions that the transforms, which form a group, map onto each other.
std::string canonical_key(const PuzzleRecord& record, const std::vector<int>& transforms) {
  std::string least = question_key(record);
  PuzzleRecord copy = record;
  for (const int transform : transforms) {
    if (transform == 0) continue;
    copy.question = dihedral(transform, static_cast<int>(record.rows), static_cast<int>(record.cols), record.question);
    least = std::min(least, question_key(copy));
  }
  return least;
}

}  // namespace

std::vector<int> shape_keeping_transforms(int64_t rows, int64_t cols) {
  std::vector<int> result;
  for (int transform = 0; transform < 8; ++transform) {
    if (rows == cols || !dihedral_swaps_axes(transform)) result.push_back(transform);
  }
  return result;
}

GroupedPuzzles group_puzzles(const PuzzleSource& source, const std::vector<int>& transforms) {
  GroupedPuzzles result;
  std::unordered_map<std::string, size_t> first_of, group_of;
  for (size_t i = 0; i < source.records.size(); ++i) {
    const PuzzleRecord& record = source.records[i];
    const auto [first, is_new] = first_of.emplace(question_key(record), i);
    if (!is_new) {
      require(source.records[first->second].answer == record.answer, ExitCode::data, source.place(i),
              ": the question is that of line ", source.records[first->second].line, ", but the answer is another one");
      ++result.repeated;
      continue;
    }
    const auto [group, is_first] = group_of.emplace(canonical_key(record, transforms), result.groups.size());
    if (is_first) result.groups.emplace_back();
    result.groups[group->second].push_back(i);
  }
  return result;
}

void check_separate(const PuzzleSource& train, const PuzzleSource& test, const std::vector<int>& transforms) {
  std::unordered_map<std::string, size_t> seen;
  for (size_t i = 0; i < train.records.size(); ++i) seen.emplace(canonical_key(train.records[i], transforms), i);
  for (size_t i = 0; i < test.records.size(); ++i) {
    const auto found = seen.find(canonical_key(test.records[i], transforms));
    if (found == seen.end()) continue;
    const bool equal = question_key(train.records[found->second]) == question_key(test.records[i]);
    fail(ExitCode::data, test.place(i), ": the test question ", equal ? "is" : "is a symmetric copy of",
         " the training question at ", train.place(found->second), "; remove one of them");
  }
}

std::vector<PuzzleGroup> take_test_groups(std::vector<PuzzleGroup>& groups, double share, uint64_t seed) {
  const auto count =
      static_cast<size_t>(std::max<int64_t>(1, std::llround(share * static_cast<double>(groups.size()))));
  require(count < groups.size(), ExitCode::usage, "--test-share ", share, " of ", groups.size(),
          groups.size() == 1 ? " question" : " questions", " leaves none for the training");
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  CounterRng rng(seed, Stream::subset, /*index=*/0);
  rng.shuffle(order);
  std::vector<bool> is_test(groups.size(), false);
  for (size_t i = 0; i < count; ++i) is_test[order[i]] = true;
  std::vector<PuzzleGroup> test, train;
  for (size_t i = 0; i < groups.size(); ++i) (is_test[i] ? test : train).push_back(std::move(groups[i]));
  groups = std::move(train);
  return test;
}

}  // namespace hrm::data
