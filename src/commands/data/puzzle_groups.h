#pragma once
// Puzzles that are symmetric copies of each other, so that no two splits share one.

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/data/puzzle_records.h"

namespace hrm::data {

// A file and its puzzles.
struct PuzzleSource {
  std::string path;
  std::vector<PuzzleRecord> records;

  std::string place(size_t record) const { return path + ":" + std::to_string(records[record].line); }
};

// Indices of the transforms (hrm/data/dihedral.h) that keep the shape of a grid, the identity first.
std::vector<int> shape_keeping_transforms(int64_t rows, int64_t cols);

// Records whose questions are equal under one of the transforms; in the order of the file.
using PuzzleGroup = std::vector<size_t>;

struct GroupedPuzzles {
  std::vector<PuzzleGroup> groups;
  int64_t repeated = 0;  // records left out because an equal one came before
};

// Throws Error(data) naming both lines for equal questions with different answers.
GroupedPuzzles group_puzzles(const PuzzleSource& source, const std::vector<int>& transforms);

// Throws Error(data) naming both lines for a test question that equals a training question under one of the transforms.
void check_separate(const PuzzleSource& train, const PuzzleSource& test, const std::vector<int>& transforms);

// Moves round(share * groups) groups, but at least one, out of `groups` and returns them. Both keep their order. Throws
// Error(usage) if no group would be left.
std::vector<PuzzleGroup> take_test_groups(std::vector<PuzzleGroup>& groups, double share, uint64_t seed);

}  // namespace hrm::data
