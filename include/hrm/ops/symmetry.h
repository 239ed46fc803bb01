#pragma once
// Random symmetries of puzzles, and their effect on a cell. Host and kernels share this code, so both draw the same
// symmetry for a sample.

#include <cstdint>

#include "hrm/base/philox.h"

namespace hrm::ops {

inline constexpr int kMaxSymmetrySize = 25;  // rows of the largest Sudoku

// A symmetry of a Sudoku with n rows, as in the official augmentation: x = transpose ? A^T : A; y[i,j] = x[row_perm[i],
// col_perm[j]]; result = digit_map[y].
struct SudokuSymmetry {
  uint8_t digit_map[kMaxSymmetrySize + 1];  // digit_map[0] = 0
  uint8_t row_perm[kMaxSymmetrySize];       // keeps bands together
  uint8_t col_perm[kMaxSymmetrySize];       // keeps stacks together
  bool transpose;                           // only if boxes are square
};

// Fisher-Yates.
template <class Rng>
HRM_HOST_DEVICE void shuffle(Rng& rng, uint8_t* values, int count) {
  for (int i = count; i > 1; --i) {
    const auto j = static_cast<int>(uniform_below(rng, static_cast<uint32_t>(i)));
    const uint8_t last = values[i - 1];
    values[i - 1] = values[j];
    values[j] = last;
  }
}

// A random order of blocks and, inside each block, of its lines.
template <class Rng>
HRM_HOST_DEVICE void draw_lines(Rng& rng, int blocks, int lines, uint8_t* perm) {
  uint8_t order[kMaxSymmetrySize];
  for (int i = 0; i < blocks; ++i) order[i] = static_cast<uint8_t>(i);
  shuffle(rng, order, blocks);
  for (int i = 0; i < blocks; ++i, perm += lines) {
    for (int line = 0; line < lines; ++line) perm[line] = static_cast<uint8_t>(order[i] * lines + line);
    shuffle(rng, perm, lines);
  }
}

// Uniform over all symmetries: digits, bands, rows within bands, stacks, columns within stacks, and transposition if
// boxes are square. Rng has next(), which returns a 32-bit word.
template <class Rng>
HRM_HOST_DEVICE void draw_sudoku_symmetry(Rng& rng, int box_rows, int box_cols, SudokuSymmetry& symmetry) {
  const int n = box_rows * box_cols;
  for (int digit = 0; digit <= n; ++digit) symmetry.digit_map[digit] = static_cast<uint8_t>(digit);
  shuffle(rng, symmetry.digit_map + 1, n);
  symmetry.transpose = box_rows == box_cols && uniform_below(rng, 2) == 1;
  draw_lines(rng, n / box_rows, box_rows, symmetry.row_perm);
  draw_lines(rng, n / box_cols, box_cols, symmetry.col_perm);
}

// The cell of the original that a cell of the result copies; cells count in row order.
HRM_HOST_DEVICE inline int sudoku_source(const SudokuSymmetry& symmetry, int n, int row, int col) {
  const int from_row = symmetry.row_perm[row], from_col = symmetry.col_perm[col];
  return symmetry.transpose ? from_col * n + from_row : from_row * n + from_col;
}

// Maps a token (digit + 1). Padding (0) and negative labels are unchanged.
HRM_HOST_DEVICE inline int32_t sudoku_token(const SudokuSymmetry& symmetry, int32_t token) {
  return token < 1 ? token : symmetry.digit_map[token - 1] + 1;
}

// The cell of a (rows x cols) grid from which cell (row, col) of the transformed grid comes. Transforms as in
// hrm/data/dihedral.h.
HRM_HOST_DEVICE inline int dihedral_source_cell(int transform, int rows, int cols, int row, int col) {
  switch (transform) {
    case 1:
      return col * cols + cols - 1 - row;
    case 2:
      return (rows - 1 - row) * cols + cols - 1 - col;
    case 3:
      return (rows - 1 - col) * cols + row;
    case 4:
      return row * cols + cols - 1 - col;
    case 5:
      return (rows - 1 - row) * cols + col;
    case 6:
      return col * cols + row;
    case 7:
      return (rows - 1 - col) * cols + cols - 1 - row;
    default:
      return row * cols + col;
  }
}

}  // namespace hrm::ops
