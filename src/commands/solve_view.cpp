#include "hrm/commands/solve_view.h"

namespace hrm::commands {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kChanged = "\033[7;32m";
constexpr const char* kReset = "\033[0m";

std::string rule(const data::SudokuGeometry& geometry) {
  std::string line = "+";
  for (int box = 0; box < geometry.size() / geometry.box_cols; ++box) {
    line += std::string(static_cast<size_t>(2 * geometry.box_cols + 1), '-') + "+";
  }
  return line + "\n";
}

std::string board_cell_text(char character, const CellStyle& style, bool wide, bool color) {
  std::string text(1, character);
  if (color && style.changed) return kChanged + text + kReset + (wide ? " " : "");
  if (color && style.given) return kDim + text + kReset + (wide ? " " : "");
  if (!wide) return text;
  return text + (style.changed && !color ? "*" : " ");
}

}  // namespace

std::string draw_cells(const std::string& cells, const std::vector<CellStyle>& styles, int64_t columns,
                       const data::SudokuGeometry* geometry, bool color) {
  std::string out;
  const auto rows = static_cast<int64_t>(cells.size()) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    if (geometry && row % geometry->box_rows == 0) out += rule(*geometry);
    for (int64_t col = 0; col < columns; ++col) {
      const auto i = static_cast<size_t>(row * columns + col);
      if (geometry && col % geometry->box_cols == 0) out += "| ";
      out += board_cell_text(cells[i], styles[i], /*wide=*/geometry != nullptr, color);
    }
    out += geometry ? "|\n" : "\n";
  }
  if (geometry) out += rule(*geometry);
  return out;
}

}  // namespace hrm::commands
