#include "hrm/data/sudoku.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/data_support.h"
#include "hrm/formats/csv.h"

namespace hrm::data {
namespace {

constexpr SudokuGeometry kNineByNine{3, 3}, kSixBySix{2, 3};

struct Row {
  Grid puzzle, answer;
  int64_t rating;
};

std::vector<Row> shipped_rows(const std::string& file, size_t count) {
  CsvReader reader(shipped(file));
  std::vector<Row> rows;
  for (CsvRow line; rows.size() < count && reader.next(line);) {
    Row row;
    EXPECT_EQ(parse_grid(kNineByNine, line.fields[1], row.puzzle), "");
    EXPECT_EQ(parse_grid(kNineByNine, line.fields[2], row.answer), "");
    row.rating = std::stoll(std::string(line.fields[3]));
    rows.push_back(std::move(row));
  }
  return rows;
}

int count_empty(const Grid& grid) {
  return static_cast<int>(std::count(grid.begin(), grid.end(), 0));
}

TEST(Sudoku, GeometryFromTheNumberOfCells) {
  EXPECT_EQ(sudoku_geometry(81), (SudokuGeometry{3, 3}));
  EXPECT_EQ(sudoku_geometry(36), (SudokuGeometry{2, 3}));
  EXPECT_EQ(sudoku_geometry(36, 3, 2), (SudokuGeometry{3, 2}));
  EXPECT_EQ(sudoku_geometry(625), (SudokuGeometry{5, 5}));
  expect_error(ExitCode::usage, {"not a square grid"}, [] { sudoku_geometry(80); });
  expect_error(ExitCode::usage, {"boxes of 2x3 cells do not fit a 9x9 Sudoku"}, [] { sudoku_geometry(81, 2, 3); });
  expect_error(ExitCode::usage, {"give the box shape"}, [] { sudoku_geometry(144); });
}

TEST(Sudoku, TextBothWays) {
  Grid grid;
  EXPECT_EQ(parse_grid(kNineByNine, std::string(81, '0'), grid), "");
  EXPECT_EQ(format_grid(grid), std::string(81, '.'));
  std::string text(256, '.');
  text[3] = 'G';
  text[4] = '9';
  EXPECT_EQ(parse_grid({4, 4}, text, grid), "");
  EXPECT_EQ(grid[3], 16);
  EXPECT_EQ(format_grid(grid), text);
  EXPECT_EQ(parse_grid(kNineByNine, std::string(80, '.'), grid), "has 80 characters instead of 81");
  std::string wrong(36, '.');
  wrong.back() = '7';
  EXPECT_NE(parse_grid(kSixBySix, wrong, grid).find("'7' at character 36"), std::string::npos);
  wrong.assign(81, '.');
  wrong.back() = 'x';
  EXPECT_NE(parse_grid(kNineByNine, wrong, grid).find("'x' at character 81"), std::string::npos);
}

TEST(Sudoku, DrawsBoxes) {
  Grid grid(36, 0);
  grid[0] = 5;
  const std::string drawn = draw_grid(kSixBySix, grid);
  EXPECT_EQ(drawn.substr(0, drawn.find('\n')), "5 . . | . . .");
  EXPECT_NE(drawn.find("\n------+------\n"), std::string::npos) << drawn;
}

TEST(Sudoku, FindsConflicts) {
  Grid grid(81, 0);
  EXPECT_EQ(find_conflict(kNineByNine, grid), "");
  grid[0] = grid[8] = 5;
  EXPECT_EQ(find_conflict(kNineByNine, grid), "digit 5 occurs twice in row 1");
  grid[8] = 0;
  grid[72] = 5;
  EXPECT_EQ(find_conflict(kNineByNine, grid), "digit 5 occurs twice in column 1");
  grid[72] = 0;
  grid[10] = 5;
  EXPECT_EQ(find_conflict(kNineByNine, grid), "digit 5 occurs twice in box 1");
}

// Every answer is the only solution, and the ratings are those of our own plain search.
TEST(Sudoku, SolvesTheShippedPuzzles) {
  for (const char* file : {"train_17clue_1k.csv", "test_17clue_2k.csv"}) {
    for (const Row& row : shipped_rows(file, 400)) {
      const SolveResult result = solve_sudoku(kNineByNine, row.puzzle);
      ASSERT_EQ(result.solutions, 1) << format_grid(row.puzzle);
      ASSERT_EQ(result.grid, row.answer);
      ASSERT_TRUE(is_solution(kNineByNine, row.puzzle, result.grid));
      if (row.rating < 5000) {
        ASSERT_EQ(rate_sudoku(kNineByNine, row.puzzle), row.rating);
      }
    }
  }
}

TEST(Sudoku, CountsSolutions) {
  Row row = shipped_rows("train_17clue_1k.csv", 1)[0];
  EXPECT_EQ(find_fault(kNineByNine, row.puzzle), "");
  // 17 clues are the fewest that any puzzle has: without one of them there are several solutions.
  Grid fewer = row.puzzle;
  *std::find_if(fewer.begin(), fewer.end(), [](int digit) { return digit != 0; }) = 0;
  EXPECT_EQ(solve_sudoku(kNineByNine, fewer).solutions, 2);
  EXPECT_EQ(find_fault(kNineByNine, fewer), "the puzzle has more than one solution");
  Grid impossible(81, 0);
  for (int i = 0; i < 8; ++i) impossible[i] = static_cast<uint8_t>(i + 1);
  impossible[17] = 9;  // the last cell of row 1 would need a 9
  EXPECT_EQ(solve_sudoku(kNineByNine, impossible).solutions, 0);
  EXPECT_EQ(find_fault(kNineByNine, impossible), "the puzzle has no solution");
  impossible[1] = 1;
  EXPECT_EQ(find_fault(kNineByNine, impossible), "the givens contradict each other: digit 1 occurs twice in row 1");
  EXPECT_EQ(solve_sudoku(kNineByNine, Grid(81, 0)).solutions, 2);
  EXPECT_FALSE(solve_sudoku(kNineByNine, row.puzzle, 3).complete);
}

TEST(Sudoku, SolutionsMustMatchTheGivens) {
  const Row row = shipped_rows("train_17clue_1k.csv", 1)[0];
  Grid other = row.answer;
  for (uint8_t& digit : other) digit = static_cast<uint8_t>(digit % 9 + 1);
  EXPECT_TRUE(is_solution(kNineByNine, Grid(81, 0), other));
  EXPECT_FALSE(is_solution(kNineByNine, row.puzzle, other));
  other = row.answer;
  other[0] = 0;
  EXPECT_FALSE(is_solution(kNineByNine, row.puzzle, other));
}

TEST(Sudoku, GeneratesUniquePuzzlesWithTheRequestedEmptyCells) {
  for (const auto& [geometry, empty, count] : {std::tuple{kNineByNine, 50, 20},
                                               {kSixBySix, 20, 100},
                                               {SudokuGeometry{2, 2}, 9, 20},
                                               {SudokuGeometry{4, 4}, 110, 3}}) {
    for (int i = 0; i < count; ++i) {
      CounterRng rng(3, Stream::generate, i);
      const Grid solution = generate_solution(geometry, rng);
      ASSERT_TRUE(is_solution(geometry, Grid(solution.size(), 0), solution));
      const Grid puzzle = dig_puzzle(geometry, solution, empty, rng);
      ASSERT_FALSE(puzzle.empty());
      EXPECT_EQ(count_empty(puzzle), empty);
      const SolveResult result = solve_sudoku(geometry, puzzle);
      EXPECT_EQ(result.solutions, 1);
      EXPECT_EQ(result.grid, solution);
    }
  }
}

TEST(Sudoku, GenerationIsAFunctionOfSeedAndIndex) {
  const auto make = [](uint64_t seed, uint64_t index) {
    CounterRng rng(seed, Stream::generate, index);
    const Grid solution = generate_solution(kNineByNine, rng);
    return dig_puzzle(kNineByNine, solution, 45, rng);
  };
  EXPECT_EQ(make(1, 2), make(1, 2));
  EXPECT_NE(make(1, 2), make(1, 3));
  EXPECT_NE(make(1, 2), make(2, 2));
}

TEST(Sudoku, GivesUpOnImpossibleRequests) {
  CounterRng rng(0, Stream::generate, 0);
  const Grid solution = generate_solution(kNineByNine, rng);
  EXPECT_TRUE(dig_puzzle(kNineByNine, solution, 70, rng).empty());  // fewer than 17 givens
}

TEST(Sudoku, OnePassOfPropagation) {
  CounterRng rng(0, Stream::generate, 0);
  const Grid solution = generate_solution(kNineByNine, rng);
  Grid puzzle = solution;
  puzzle[0] = puzzle[40] = 0;
  EXPECT_EQ(propagate_once(kNineByNine, puzzle), solution);
  // Only what the givens alone force: a first row of 1..7 leaves two digits for each of two cells.
  Grid open(81, 0);
  for (int i = 0; i < 7; ++i) open[i] = static_cast<uint8_t>(i + 1);
  EXPECT_EQ(propagate_once(kNineByNine, open), open);
  open[26] = 8;  // leaves 9 for both: one pass does not notice that the second follows from the first
  const Grid filled = propagate_once(kNineByNine, open);
  EXPECT_EQ(filled[7], 9);
  EXPECT_EQ(filled[8], 9);
}

}  // namespace
}  // namespace hrm::data
