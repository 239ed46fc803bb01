#pragma once
// Puzzles as text. A question or an answer is a string with one character per cell, an array of strings (the rows of a
// grid), or an array of numbers or strings (two dimensions for a grid, one for a sequence). No tensors here.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/data/puzzle_vocabulary.h"

namespace hrm::data {

// How cells were written, and so how an answer to them is written.
enum class CellForm { text, row_texts, strings, numbers };

struct Cells {
  std::vector<std::string> texts;  // in row order; no text is empty or has control characters
  int64_t rows = 0, cols = 0;      // 0: a grid as one string without line breaks has no shape yet
  CellForm form = CellForm::text;
};

// Line breaks in the string of a grid separate its rows. Both functions throw Error(data), with only the reason, for
// text that is not UTF-8, no cells, more than kMostCells, a cell longer than kLongestCellText, a control character, or
// rows of different lengths.
Cells parse_cells(std::string_view text, PuzzleForm form);
Cells parse_json_cells(const nlohmann::json& value, PuzzleForm form);

// A line of questions as `solve` reads it: a JSON array if it begins with '[' and that is no symbol of the vocabulary,
// otherwise a string. Throws Error(data) with only the reason.
Cells parse_cell_line(std::string_view line, const PuzzleVocabulary& vocabulary);

// Gives a grid without a shape these rows and columns (0: whatever fits), or makes it square if both are 0. Throws
// Error(data), with only the reason, if that is impossible; the reason ends with `advice`.
void shape_cells(Cells& cells, int64_t rows, int64_t cols, const std::string& advice);

// The inverse of both functions, in one line. Cells of more than one character make an array of any style.
std::string format_cells(const Cells& cells, PuzzleForm form);

// "3x4 cells", or "12 cells" for a sequence.
std::string cells_text(const Cells& cells, PuzzleForm form);

}  // namespace hrm::data
