#pragma once
// Sudoku of any box shape up to 25x25: text, rules, a solver, a generator and a baseline predictor.
// A grid is N*N numbers in row order: 0 = empty, 1..N = digits. Tokens follow the official layout: digit + 1, 0 = PAD.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/philox.h"

namespace hrm::data {

// Boxes of box_rows x box_cols cells; N = box_rows * box_cols rows and columns.
struct SudokuGeometry {
  int box_rows = 3;
  int box_cols = 3;

  int size() const { return box_rows * box_cols; }  // N
  int cells() const { return size() * size(); }     // S
  int box(int row, int col) const { return row / box_rows * box_rows + col / box_cols; }
  bool square_boxes() const { return box_rows == box_cols; }  // transposition preserves the rules
  int vocab_size() const { return size() + 2; }               // PAD, blank, N digits
  bool operator==(const SudokuGeometry&) const = default;
};

inline constexpr int kMaxSudokuSize = 25;

using Grid = std::vector<uint8_t>;

// The geometry of a puzzle with this many cells. box_rows = box_cols = 0: square boxes, or 2x3 for 6x6. Throws
// Error(usage) if the boxes do not form a grid of that size, or if they must be given.
SudokuGeometry sudoku_geometry(int64_t cells, int64_t box_rows = 0, int64_t box_cols = 0);

// A grid as N*N characters: '.' or '0' = empty, 1..9, then A..P for 10..25. The function parse_grid fills `grid` and
// returns an empty string, or returns what is wrong, e.g. "has 80 characters instead of 81".
std::string parse_grid(const SudokuGeometry& geometry, std::string_view text, Grid& grid);
std::string format_grid(const Grid& grid);
// Several lines with separators between the boxes, for display.
std::string draw_grid(const SudokuGeometry& geometry, const Grid& grid);

// The rule that the digits break, e.g. "digit 5 stands twice in row 1"; empty if none. Empty cells are ignored.
std::string find_conflict(const SudokuGeometry& geometry, const Grid& grid);
// True if `grid` is full, breaks no rule and agrees with all digits of `givens`.
bool is_solution(const SudokuGeometry& geometry, const Grid& givens, const Grid& grid);

struct SolveResult {
  int solutions = 0;     // 0, 1, or 2 (at least two)
  bool complete = true;  // false: stopped at max_nodes; `solutions` is then a lower bound
  Grid grid;             // the first solution found; empty if there is none
  int64_t nodes = 0;     // cells filled by the search, including wrong ones
};

// Counts solutions up to two. The search first fills the cell, or the place in a row, column or box, with the fewest
// candidates. Puzzles for humans then need hardly any search. It stops after `max_nodes`.
SolveResult solve_sudoku(const SudokuGeometry& geometry, const Grid& givens, int64_t max_nodes = INT64_MAX);

// Difficulty as in the shipped files: the number of nodes that a plain depth-first search expands up to its first
// solution. The search always picks the first cell with the fewest candidates, even if there is only one, and tries
// digits in ascending order. Dead ends are not counted. Returns 0 if there is no solution.
int64_t rate_sudoku(const SudokuGeometry& geometry, const Grid& givens);

// One sentence saying why this is not a proper puzzle: contradictory givens, no solution, or at least two solutions.
// Empty if it has exactly one solution.
std::string find_fault(const SudokuGeometry& geometry, const Grid& givens);

// A random full grid.
Grid generate_solution(const SudokuGeometry& geometry, CounterRng& rng);
// Empties exactly `empty` cells of `solution` so that it stays the only solution. Returns an empty grid if several
// random attempts fail.
Grid dig_puzzle(const SudokuGeometry& geometry, const Grid& solution, int empty, CounterRng& rng);

// One pass of constraint propagation: fills each empty cell for which the givens leave a single digit. This is the
// baseline that a model has to beat.
Grid propagate_once(const SudokuGeometry& geometry, const Grid& givens);

}  // namespace hrm::data
