#include "hrm/data/sudoku.h"

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

char digit_character(int digit) {
  if (digit == 0) return '.';
  return static_cast<char>(digit <= 9 ? '0' + digit : 'A' + digit - 10);
}

// Returns -1 for a character that is not a digit of any grid.
int digit_value(char character) {
  if (character == '.') return 0;
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'A' && character <= 'P') return character - 'A' + 10;
  return -1;
}

}  // namespace

SudokuGeometry sudoku_geometry(int64_t cells, int64_t box_rows, int64_t box_cols) {
  int size = 0;
  while (int64_t{size} * size < cells) ++size;
  require(int64_t{size} * size == cells && size >= 1 && size <= kMaxSudokuSize, ExitCode::usage, "a Sudoku of ", cells,
          " cells is not a square grid of at most ", kMaxSudokuSize, "x", kMaxSudokuSize);
  if (box_rows == 0 && box_cols == 0) {
    if (size == 6) return {2, 3};
    int root = 0;
    while (root * root < size) ++root;
    require(root * root == size, ExitCode::usage, "a ", size, "x", size,
            " Sudoku has no square boxes: give the box shape (data.box_rows and data.box_cols, or --box RxC)");
    return {root, root};
  }
  require(box_rows >= 1 && box_cols >= 1 && box_rows * box_cols == size, ExitCode::usage, "boxes of ", box_rows, "x",
          box_cols, " cells do not fit a ", size, "x", size, " Sudoku: rows times columns must be ", size);
  return {static_cast<int>(box_rows), static_cast<int>(box_cols)};
}

std::string parse_grid(const SudokuGeometry& geometry, std::string_view text, Grid& grid) {
  if (static_cast<int64_t>(text.size()) != geometry.cells()) {
    return cat("has ", text.size(), " characters instead of ", geometry.cells());
  }
  grid.resize(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int digit = digit_value(text[i]);
    if (digit < 0 || digit > geometry.size()) {
      return cat("has '", printable(text.substr(i, 1)), "' at character ", i + 1,
                 ", which is neither blank nor a digit of a ", geometry.size(), "x", geometry.size(), " Sudoku");
    }
    grid[i] = static_cast<uint8_t>(digit);
  }
  return "";
}

std::string format_grid(const Grid& grid) {
  std::string text(grid.size(), '.');
  for (size_t i = 0; i < grid.size(); ++i) text[i] = digit_character(grid[i]);
  return text;
}

std::string draw_grid(const SudokuGeometry& geometry, const Grid& grid) {
  const int n = geometry.size();
  std::string text;
  for (int row = 0; row < n; ++row) {
    if (row > 0 && row % geometry.box_rows == 0) {
      for (int stack = 0; stack < n / geometry.box_cols; ++stack) {
        // One character per cell and the blanks around it; the outer stacks have no margin.
        const bool outer_left = stack == 0, outer_right = stack + 1 == n / geometry.box_cols;
        text += (outer_left ? "" : "+") + std::string(2 * geometry.box_cols + 1 - outer_left - outer_right, '-');
      }
      text += '\n';
    }
    for (int col = 0; col < n; ++col) {
      if (col > 0) text += col % geometry.box_cols == 0 ? " | " : " ";
      text += digit_character(grid[row * n + col]);
    }
    text += '\n';
  }
  return text;
}

std::string find_conflict(const SudokuGeometry& geometry, const Grid& grid) {
  const int n = geometry.size();
  uint32_t rows[kMaxSudokuSize] = {}, cols[kMaxSudokuSize] = {}, boxes[kMaxSudokuSize] = {};
  for (int row = 0; row < n; ++row) {
    for (int col = 0; col < n; ++col) {
      const int digit = grid[row * n + col];
      if (digit == 0) continue;
      const uint32_t bit = 1u << digit;
      const int box = geometry.box(row, col);
      const char* unit = rows[row] & bit ? "row " : cols[col] & bit ? "column " : boxes[box] & bit ? "box " : nullptr;
      if (unit != nullptr) {
        const int number = rows[row] & bit ? row : cols[col] & bit ? col : box;
        return cat("digit ", digit, " occurs twice in ", unit, number + 1);
      }
      rows[row] |= bit;
      cols[col] |= bit;
      boxes[box] |= bit;
    }
  }
  return "";
}

bool is_solution(const SudokuGeometry& geometry, const Grid& givens, const Grid& grid) {
  if (static_cast<int>(grid.size()) != geometry.cells() || givens.size() != grid.size()) return false;
  for (size_t i = 0; i < grid.size(); ++i) {
    if (grid[i] == 0 || grid[i] > geometry.size() || (givens[i] != 0 && givens[i] != grid[i])) return false;
  }
  return find_conflict(geometry, grid).empty();
}

Grid propagate_once(const SudokuGeometry& geometry, const Grid& givens) {
  const int n = geometry.size();
  std::vector<uint32_t> rows(n), cols(n), boxes(n);
  for (int i = 0; i < geometry.cells(); ++i) {
    if (givens[i] == 0) continue;
    const uint32_t bit = 1u << (givens[i] - 1);
    rows[i / n] |= bit;
    cols[i % n] |= bit;
    boxes[geometry.box(i / n, i % n)] |= bit;
  }
  Grid grid = givens;
  for (int i = 0; i < geometry.cells(); ++i) {
    const uint32_t open = ((1u << n) - 1) & ~(rows[i / n] | cols[i % n] | boxes[geometry.box(i / n, i % n)]);
    if (grid[i] != 0 || open == 0 || (open & (open - 1)) != 0) continue;
    grid[i] = static_cast<uint8_t>(__builtin_ctz(open) + 1);
  }
  return grid;
}

}  // namespace hrm::data
