#pragma once
// The symmetries of Sudoku: random ones for augmentation, and classes of solutions that no symmetry maps onto another.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hrm/data/sudoku.h"
#include "hrm/ops/symmetry.h"

namespace hrm::data {

using ops::SudokuSymmetry;

// Uniform over all symmetries (hrm/ops/symmetry.h).
SudokuSymmetry draw_symmetry(const SudokuGeometry& geometry, CounterRng& rng);
SudokuSymmetry draw_symmetry(const SudokuGeometry& geometry, uint64_t seed, uint64_t sample);

Grid apply_symmetry(const SudokuGeometry& geometry, const SudokuSymmetry& symmetry, const Grid& grid);

// The same on rows of tokens (digit + 1; PAD and negative labels stay), in place: (S) int32 each.
class SudokuAugmenter {
 public:
  explicit SudokuAugmenter(SudokuGeometry geometry);
  // Applies the symmetry that belongs to (seed, sample) to a puzzle and its labels.
  void operator()(uint64_t seed, uint64_t sample, int32_t* inputs, int32_t* labels);

 private:
  SudokuGeometry geometry_;
  std::vector<int32_t> scratch_;
};

// True when canonical_form is feasible: the symmetries to try are few enough (9x9 and below, and 3x4 boxes).
bool has_canonical_form(const SudokuGeometry& geometry);

// The lexicographically smallest grid that symmetries make of a full grid: two grids have the same canonical form
// exactly when a symmetry maps one onto the other. 9x9: about 0.2 ms. Error(unexpected) unless has_canonical_form.
Grid canonical_form(const SudokuGeometry& geometry, const Grid& solution);

// A digest that all grids of a class share; different classes may share it too, rarely. Microseconds, any size.
uint64_t class_invariant(const SudokuGeometry& geometry, const Grid& solution);

// A set of solution classes, e.g. of a training set. Uses the invariant first and canonical forms only where it
// cannot tell; where those are not feasible, a shared invariant counts as the same class.
class SolutionClasses {
 public:
  explicit SolutionClasses(SudokuGeometry geometry) : geometry_(geometry) {}
  void insert(const Grid& solution);
  bool contains(const Grid& solution);

 private:
  struct Bucket {
    std::vector<Grid> solutions;  // canonical form not computed yet
    std::unordered_set<std::string> forms;
  };
  SudokuGeometry geometry_;
  std::unordered_map<uint64_t, Bucket> buckets_;
};

// A class and the share of all full grids that it has.
struct SolutionClass {
  Grid form;  // canonical
  double share = 0;
};
// All classes in lexicographic order, where they are few: 4x4 (2 classes) and 6x6 (49). Empty otherwise.
std::vector<SolutionClass> all_classes(const SudokuGeometry& geometry);

}  // namespace hrm::data
