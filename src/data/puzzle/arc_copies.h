#pragma once
// The copies of a compact ARC folder (hrm/data/arc.h). No tensors here.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "hrm/data/arc.h"
#include "hrm/formats/npy.h"
#include "hrm/ops/symmetry.h"

namespace hrm::data {

int64_t arc_copy_code(const ArcAugmentation& augmentation, int row, int col);

// The larger of the rows of a pair's grids, and of their columns.
struct ArcPairSize {
  int rows = 0, cols = 0;
};

class ArcCopies {
 public:
  // Throws Error(data), one sentence with the file, where it is no table of codes.
  explicit ArcCopies(const std::filesystem::path& file);

  int64_t examples() const { return file_.array().shape[0]; }

  // Finds the pair of each example: `groups` and `puzzles` are the first puzzle of each group and the first example of
  // each puzzle, with the totals. Throws Error(data) where puzzles of a group have different numbers of examples, for
  // another number of pairs, and for a copy that leaves its square.
  void place(const std::vector<int64_t>& groups, const std::vector<int64_t>& puzzles,
             const std::vector<ArcPairSize>& pairs);

  // The pair of the first example of a puzzle; those of the others follow.
  int64_t first_pair(int64_t puzzle) const { return first_pairs_[static_cast<size_t>(puzzle)]; }
  int64_t code(int64_t example) const;

 private:
  void check_code(int64_t example, const ArcPairSize& size) const;

  NpyFile file_;
  std::vector<int32_t> first_pairs_;  // of each puzzle
};

}  // namespace hrm::data
