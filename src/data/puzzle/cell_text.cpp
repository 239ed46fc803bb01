#include "hrm/data/cell_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/tokenizer/unicode.h"
#include "hrm/base/text.h"
#include "hrm/data/maze.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

using nlohmann::json;

void add_cell(Cells& cells, std::string_view text) {
  const size_t number = cells.texts.size() + 1;
  require(!text.empty(), ExitCode::data, "cell ", number, " is empty; write a symbol for a cell that is not known");
  require(text.size() <= kLongestCellText, ExitCode::data, "cell ", number, " has ", text.size(), " bytes; at most ",
          kLongestCellText, " are allowed");
  require(number <= static_cast<size_t>(kMostCells), ExitCode::data, "has more than ", kMostCells, " cells");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    require(byte >= 0x20 && byte != 0x7F, ExitCode::data, "cell ", number, " has the control character ",
            printable({&c, 1}));
  }
  cells.texts.emplace_back(text);
}

void add_characters(Cells& cells, std::string_view text) {
  require(is_utf8(text), ExitCode::data, "the text is not valid UTF-8");
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_at(text.data() + at).bytes;
    add_cell(cells, text.substr(at, bytes));
    at += bytes;
  }
}

// To be called after the cells of each row.
void end_row(Cells& cells) {
  const auto count = static_cast<int64_t>(cells.texts.size());
  if (cells.rows == 0) cells.cols = count;
  const int64_t length = count - cells.rows * cells.cols;
  ++cells.rows;
  require(length > 0, ExitCode::data, "row ", cells.rows, " is empty");
  require(length == cells.cols, ExitCode::data, "row ", cells.rows, " has length ", length, ", but row 1 has length ",
          cells.cols);
}

void add_json_cell(Cells& cells, const json& value) {
  require(value.is_string() || value.is_number(), ExitCode::data, "cell ", cells.texts.size() + 1,
          " is neither a string nor a number");
  if (!value.is_string()) return add_cell(cells, value.dump());
  require(is_utf8(value.get_ref<const std::string&>()), ExitCode::data, "the text is not valid UTF-8");
  add_cell(cells, value.get_ref<const std::string&>());
}

bool is_one_character(const std::string& text) {
  return character_at(text.data()).bytes == text.size();
}

json cell_json(const std::string& text, CellForm form) {
  if (form != CellForm::numbers) return text;
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() ? value : json(text);
}

}  // namespace

Cells parse_cells(std::string_view text, PuzzleForm form) {
  Cells cells;
  require(!text.empty(), ExitCode::data, "has no cells");
  if (form == PuzzleForm::pairs) {
    add_characters(cells, text);
    end_row(cells);
    return cells;
  }
  const bool has_rows = text.find('\n') != std::string_view::npos;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    if (row.ends_with('\r')) row.remove_suffix(1);
    add_characters(cells, row);
    if (has_rows) end_row(cells);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  require(!cells.texts.empty(), ExitCode::data, "has no cells");
  return cells;
}

Cells parse_json_cells(const json& value, PuzzleForm form) {
  if (value.is_string()) return parse_cells(value.get_ref<const std::string&>(), form);
  require(value.is_array(), ExitCode::data, "is neither a string nor an array");
  require(!value.empty(), ExitCode::data, "has no cells");
  Cells cells;
  const bool pairs = form == PuzzleForm::pairs;
  const json& first = pairs || !value[0].is_array() || value[0].empty() ? value[0] : value[0][0];
  cells.form = first.is_number() ? CellForm::numbers : CellForm::strings;
  for (const json& row : value) {
    if (pairs) {
      add_json_cell(cells, row);
      continue;
    }
    if (row.is_string()) {
      cells.form = CellForm::row_texts;
      add_characters(cells, row.get_ref<const std::string&>());
    } else {
      require(row.is_array(), ExitCode::data, "row ", cells.rows + 1, " is neither a string nor an array");
      for (const json& cell : row) add_json_cell(cells, cell);
    }
    end_row(cells);
  }
  if (pairs) end_row(cells);
  return cells;
}

Cells parse_cell_line(std::string_view line, const PuzzleVocabulary& vocabulary) {
  if (!line.starts_with('[') || vocabulary.token("[")) return parse_cells(line, vocabulary.form);
  return parse_json_cells(parse_json(line, "the JSON array", ExitCode::data), vocabulary.form);
}

void shape_cells(Cells& cells, int64_t rows, int64_t cols, const std::string& advice) {
  if (cells.rows > 0) return;
  const auto count = static_cast<int64_t>(cells.texts.size());
  if (rows == 0 && cols == 0) {
    cells.rows = cells.cols = maze_side(cells.texts.size());
    require(cells.rows > 0, ExitCode::data, "has ", count, " cells in one row, which is no square", advice);
    return;
  }
  cells.rows = rows > 0 ? rows : count / cols;
  cells.cols = cols > 0 ? cols : count / rows;
  require(count > 0 && cells.rows * cells.cols == count, ExitCode::data, "has ", count, " cells, which do not make ",
          rows > 0 ? cat(rows, " rows") : std::string(), rows > 0 && cols > 0 ? " and " : "",
          cols > 0 ? cat(cols, " columns") : std::string());
}

std::string format_cells(const Cells& cells, PuzzleForm form) {
  const bool characters = std::all_of(cells.texts.begin(), cells.texts.end(), is_one_character);
  if (characters && cells.form == CellForm::text) {
    std::string text;
    for (const std::string& cell : cells.texts) text += cell;
    return text;
  }
  json out = json::array();
  for (int64_t row = 0; row < cells.rows; ++row) {
    json items = json::array();
    std::string text;
    for (int64_t col = 0; col < cells.cols; ++col) {
      const std::string& cell = cells.texts[static_cast<size_t>(row * cells.cols + col)];
      text += cell;
      items.push_back(cell_json(cell, cells.form));
    }
    if (form == PuzzleForm::pairs) return items.dump();
    out.push_back(characters && cells.form == CellForm::row_texts ? json(text) : items);
  }
  return out.dump();
}

std::string cells_text(const Cells& cells, PuzzleForm form) {
  return form == PuzzleForm::pairs ? cat(cells.texts.size(), " cells") : cat(cells.rows, "x", cells.cols, " cells");
}

}  // namespace hrm::data
