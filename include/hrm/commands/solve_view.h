#pragma once
// How `solve --watch` shows a puzzle in the terminal.

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/data/sudoku.h"

namespace hrm::commands {

struct CellStyle {
  bool given = false;    // part of the question
  bool changed = false;  // differs from the segment before
};

// The grid as text, one line per row, with rules between boxes for a Sudoku (geometry set) and plain rows otherwise.
// `cells`: one character each; `columns`: cells in a row. With `color`, givens are dim and changed cells stand out in
// reverse; without, a changed cell has a '*' behind it.
std::string draw_cells(const std::string& cells, const std::vector<CellStyle>& styles, int64_t columns,
                       const data::SudokuGeometry* geometry, bool color);

}  // namespace hrm::commands
