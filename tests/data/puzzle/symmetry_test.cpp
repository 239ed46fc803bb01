#include "hrm/data/sudoku_symmetry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/data_support.h"

namespace hrm::data {
namespace {

constexpr SudokuGeometry kNine{3, 3}, kSix{2, 3};

Grid random_solution(const SudokuGeometry& geometry, uint64_t index) {
  CounterRng rng(11, Stream::generate, index);
  return generate_solution(geometry, rng);
}

TEST(Symmetry, MakesSolutionsOfSolutions) {
  for (const SudokuGeometry& geometry : {kNine, kSix, SudokuGeometry{3, 2}, SudokuGeometry{4, 4}}) {
    const Grid solution = random_solution(geometry, 0), nothing(solution.size(), 0);
    std::set<Grid> images;
    for (uint64_t sample = 0; sample < 50; ++sample) {
      const SudokuSymmetry symmetry = draw_symmetry(geometry, 5, sample);
      const Grid image = apply_symmetry(geometry, symmetry, solution);
      EXPECT_TRUE(is_solution(geometry, nothing, image));
      images.insert(image);
    }
    EXPECT_EQ(images.size(), 50u);
  }
}

TEST(Symmetry, TransposesSquareBoxesHalfTheTimeAndOthersNever) {
  int nine = 0, six = 0;
  for (uint64_t sample = 0; sample < 400; ++sample) {
    nine += draw_symmetry(kNine, 1, sample).transpose;
    six += draw_symmetry(kSix, 1, sample).transpose;
  }
  EXPECT_GT(nine, 160);
  EXPECT_LT(nine, 240);
  EXPECT_EQ(six, 0);
}

TEST(Symmetry, DrawsAreUniform) {
  // Where row 1 comes from and what becomes of digit 1: 9 values each, 3 band orders.
  std::array<int, 9> row{}, digit{};
  constexpr int kDraws = 9000;
  for (uint64_t sample = 0; sample < kDraws; ++sample) {
    const SudokuSymmetry symmetry = draw_symmetry(kNine, 2, sample);
    ++row[symmetry.row_perm[0]];
    ++digit[symmetry.digit_map[1] - 1];
    EXPECT_EQ(symmetry.row_perm[0] / 3, symmetry.row_perm[2] / 3);
    EXPECT_EQ(symmetry.digit_map[0], 0);
  }
  for (int i = 0; i < 9; ++i) {  // 1000 expected, standard deviation 30
    EXPECT_NEAR(row[i], 1000, 150);
    EXPECT_NEAR(digit[i], 1000, 150);
  }
}

TEST(Symmetry, AugmenterDoesTheSameToTokens) {
  for (const SudokuGeometry& geometry : {kNine, kSix}) {
    const Grid solution = random_solution(geometry, 1);
    Grid puzzle = solution;
    for (size_t i = 0; i < puzzle.size(); i += 2) puzzle[i] = 0;
    std::vector<int32_t> inputs, labels;
    for (size_t i = 0; i < puzzle.size(); ++i) {
      inputs.push_back(puzzle[i] + 1);
      labels.push_back(i == 5 ? kIgnoreLabel : solution[i] + 1);
    }
    SudokuAugmenter augmenter(geometry);
    augmenter(7, 99, inputs.data(), labels.data());
    const SudokuSymmetry symmetry = draw_symmetry(geometry, 7, 99);
    const Grid want_inputs = apply_symmetry(geometry, symmetry, puzzle);
    const Grid want_labels = apply_symmetry(geometry, symmetry, solution);
    int ignored = 0;
    for (size_t i = 0; i < puzzle.size(); ++i) {
      EXPECT_EQ(inputs[i], want_inputs[i] + 1);
      if (labels[i] == kIgnoreLabel) {
        ++ignored;
      } else {
        EXPECT_EQ(labels[i], want_labels[i] + 1);
      }
    }
    EXPECT_EQ(ignored, 1);
  }
}

TEST(Symmetry, CanonicalFormIsInvariant) {
  for (const SudokuGeometry& geometry : {kNine, kSix, SudokuGeometry{2, 2}, SudokuGeometry{3, 2}}) {
    ASSERT_TRUE(has_canonical_form(geometry));
    for (uint64_t index = 0; index < 5; ++index) {
      const Grid solution = random_solution(geometry, index);
      const Grid form = canonical_form(geometry, solution);
      EXPECT_TRUE(is_solution(geometry, Grid(form.size(), 0), form));
      EXPECT_LE(form, solution);
      EXPECT_EQ(canonical_form(geometry, form), form);
      for (uint64_t sample = 0; sample < 20; ++sample) {
        const Grid image = apply_symmetry(geometry, draw_symmetry(geometry, index, sample), solution);
        ASSERT_EQ(canonical_form(geometry, image), form);
        ASSERT_EQ(class_invariant(geometry, image), class_invariant(geometry, solution));
      }
    }
  }
}

// The published class of largest symmetry: its form is the smallest of all 9x9 solution grids.
TEST(Symmetry, CanonicalFormOfTheMostSymmetricGrid) {
  Grid grid(81);
  for (int row = 0; row < 9; ++row) {
    for (int col = 0; col < 9; ++col) grid[row * 9 + col] = static_cast<uint8_t>((row * 3 + row / 3 + col) % 9 + 1);
  }
  const Grid form = canonical_form(kNine, grid);
  EXPECT_EQ(format_grid(form).substr(0, 18), "123456789456789123");
}

TEST(Symmetry, DifferentClassesDiffer) {
  std::set<Grid> forms;
  for (uint64_t index = 0; index < 100; ++index) forms.insert(canonical_form(kNine, random_solution(kNine, index)));
  EXPECT_EQ(forms.size(), 100u);  // of 5,472,730,538 classes
}

TEST(Symmetry, SmallSizesHaveTheirKnownNumberOfClasses) {
  EXPECT_EQ(all_classes({2, 2}).size(), 2u);
  const std::vector<SolutionClass> six = all_classes(kSix);
  EXPECT_EQ(six.size(), 49u);
  EXPECT_EQ(all_classes({3, 2}).size(), 49u);
  double share = 0;
  for (const SolutionClass& one : six) share += one.share;
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_TRUE(all_classes(kNine).empty());
  // Random grids reach all of them.
  std::set<Grid> reached;
  for (uint64_t index = 0; index < 8000; ++index) reached.insert(canonical_form(kSix, random_solution(kSix, index)));
  EXPECT_EQ(reached.size(), 49u);
}

TEST(Symmetry, SetOfClasses) {
  for (const SudokuGeometry& geometry : {kNine, SudokuGeometry{4, 4}}) {
    SolutionClasses classes(geometry);
    for (uint64_t index = 0; index < 5; ++index) classes.insert(random_solution(geometry, index));
    for (uint64_t index = 0; index < 5; ++index) {
      const SudokuSymmetry symmetry = draw_symmetry(geometry, 3, index);
      EXPECT_TRUE(classes.contains(apply_symmetry(geometry, symmetry, random_solution(geometry, index))));
      EXPECT_FALSE(classes.contains(random_solution(geometry, 100 + index)));
    }
  }
  EXPECT_FALSE(has_canonical_form({4, 4}));
  expect_error(ExitCode::unexpected, {"out of reach"}, [] { canonical_form({4, 4}, random_solution({4, 4}, 0)); });
}

// The two 6x6 classes that share an invariant, if there are such, are still told apart.
TEST(Symmetry, SetOfClassesTellsAllSixBySixClassesApart) {
  const std::vector<SolutionClass> six = all_classes(kSix);
  for (const SolutionClass& one : six) {
    SolutionClasses classes(kSix);
    classes.insert(one.form);
    for (const SolutionClass& other : six) EXPECT_EQ(classes.contains(other.form), other.form == one.form);
  }
}

}  // namespace
}  // namespace hrm::data
