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

// True if a transform exchanges rows and columns. Transforms as in hrm/data/dihedral.h.
HRM_HOST_DEVICE constexpr bool dihedral_swaps_axes(int transform) {
  return transform == 1 || transform == 3 || transform == 6 || transform == 7;
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

// A copy of an ARC pair: new colours, a transform of each grid, and the place of the first cell. Rows are squares of
// tokens (hrm/data/arc.h): 0 around a grid, 1 at its end, colour + 2. The original grid stands at the first cell.
inline constexpr int kMaxArcCopySide = 32, kArcCopyColours = 10;
inline constexpr int32_t kArcIgnored = -100;  // around a grid of labels

struct ArcCopy {
  int transform = 0, row = 0, col = 0;
  uint64_t colours = 0;  // 4 bits for each colour, the lowest for colour 0
};

// Bits 0 to 2: transform, 3 to 7: row, 8 to 12: column, 13 to 52: colours.
inline constexpr int kArcCopyBits = 53;
HRM_HOST_DEVICE inline int64_t arc_copy_code(const ArcCopy& copy) {
  return static_cast<int64_t>(static_cast<uint64_t>(copy.transform) | static_cast<uint64_t>(copy.row) << 3 |
                              static_cast<uint64_t>(copy.col) << 8 | copy.colours << 13);
}
HRM_HOST_DEVICE inline ArcCopy arc_copy_of(int64_t code) {
  const auto bits = static_cast<uint64_t>(code);
  return {static_cast<int>(bits & 7), static_cast<int>(bits >> 3 & 31), static_cast<int>(bits >> 8 & 31), bits >> 13};
}

// Token (row, col) of the copy of a (rows x cols) grid that stands at the first cell of (side x side) tokens.
HRM_HOST_DEVICE inline int32_t arc_copy_token(const ArcCopy& copy, const int32_t* tokens, int side, int rows, int cols,
                                              int row, int col, int32_t around) {
  const bool swaps = dihedral_swaps_axes(copy.transform);
  const int copy_rows = swaps ? cols : rows, copy_cols = swaps ? rows : cols;
  const int i = row - copy.row, j = col - copy.col;
  if (i < 0 || j < 0 || i > copy_rows || j > copy_cols || (i == copy_rows && j == copy_cols)) return around;
  if (i == copy_rows || j == copy_cols) return 1;
  const int source = dihedral_source_cell(copy.transform, rows, cols, i, j);
  const int32_t token = tokens[source / cols * side + source % cols];
  return token < 2 ? token : static_cast<int32_t>(copy.colours >> (4 * (token - 2)) & 15) + 2;
}

// All (side * side) tokens of the copy.
inline void arc_copy_row(const ArcCopy& copy, const int32_t* tokens, int side, int32_t around, int32_t* out) {
  int rows = 0, cols = 0;
  while (rows < side && tokens[rows * side] >= 2) ++rows;
  while (cols < side && tokens[cols] >= 2) ++cols;
  for (int row = 0; row < side; ++row) {
    for (int col = 0; col < side; ++col) {
      *out++ = arc_copy_token(copy, tokens, side, rows, cols, row, col, around);
    }
  }
}

}  // namespace hrm::ops
