#pragma once
// The symmetries of Sudoku: random ones for augmentation, and equivalence classes of solutions under them.

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

// Applies symmetries to token rows (digit + 1; PAD and negative labels stay), (S) int32 each, in place.
class SudokuAugmenter {
 public:
  explicit SudokuAugmenter(SudokuGeometry geometry);
  // Applies the symmetry of (seed, sample) to a puzzle and its labels.
  void operator()(uint64_t seed, uint64_t sample, int32_t* inputs, int32_t* labels);

 private:
  SudokuGeometry geometry_;
  std::vector<int32_t> scratch_;
};

// True if canonical_form is feasible, with few enough symmetries to try: 9x9 and below, and 3x4 boxes.
bool has_canonical_form(const SudokuGeometry& geometry);

// The lexicographically smallest grid that symmetries make of a full grid. Two grids have the same canonical form
// exactly if a symmetry maps one onto the other. Takes about 0.2 ms for 9x9. Throws Error(unexpected) unless
// has_canonical_form.
Grid canonical_form(const SudokuGeometry& geometry, const Grid& solution);

// A digest that all grids of a class share. Different classes rarely share it. Takes microseconds for any size.
uint64_t class_invariant(const SudokuGeometry& geometry, const Grid& solution);

// A set of solution classes, e.g. of a training set. It compares invariants first, and canonical forms only if these
// are equal. If canonical forms are not feasible, equal invariants count as the same class.
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

// A class and its share of all full grids.
struct SolutionClass {
  Grid form;  // canonical
  double share = 0;
};
// All classes in lexicographic order, for 4x4 (2 classes) and 6x6 (49). Empty for other sizes.
std::vector<SolutionClass> all_classes(const SudokuGeometry& geometry);

}  // namespace hrm::data
