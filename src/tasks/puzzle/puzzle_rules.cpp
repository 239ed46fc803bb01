#include "hrm/tasks/puzzle_rules.h"

#include <cmath>
#include <optional>
#include <string>

#include "hrm/base/error.h"
#include "hrm/data/maze.h"
#include "hrm/data/sudoku.h"

namespace hrm::tasks {
namespace {

std::optional<data::SudokuGeometry> geometry_of(int64_t cells, const config::DataConfig& data) {
  try {
    return data::sudoku_geometry(cells, data.box_rows, data.box_cols);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Of Sudoku: token = digit + 1. Empty: a token stands for no digit.
std::optional<data::Grid> grid_of(const int32_t* tokens, int64_t cells, int64_t vocabulary) {
  data::Grid grid;
  for (int64_t i = 0; i < cells; ++i) {
    if (tokens[i] < 1 || tokens[i] >= vocabulary) return std::nullopt;
    grid.push_back(static_cast<uint8_t>(tokens[i] - 1));
  }
  return grid;
}

std::optional<std::string> maze_of(const int32_t* tokens, int64_t cells) {
  std::string text;
  for (int64_t i = 0; i < cells; ++i) {
    if (tokens[i] < 1 || tokens[i] >= data::kMazeVocabSize) return std::nullopt;
    text += data::maze_character(tokens[i]);
  }
  return text;
}

}  // namespace

PuzzleGame game_of(const models::PuzzleModelDims& dims, const config::DataConfig& data) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(dims.seq_len))));
  if (side * side != dims.seq_len) return PuzzleGame::unknown;
  if (data.kind != config::PuzzleFileKind::sudoku && dims.vocab_size == data::kMazeVocabSize) return PuzzleGame::maze;
  const bool sudoku = data.kind != config::PuzzleFileKind::maze && dims.vocab_size == side + 2;
  return sudoku ? PuzzleGame::sudoku : PuzzleGame::unknown;
}

PuzzleRules puzzle_rules(const models::PuzzleModelDims& dims, const config::DataConfig& data) {
  const int64_t cells = dims.seq_len, vocabulary = dims.vocab_size;
  const PuzzleGame game = game_of(dims, data);
  // A Sudoku of 4x4 has as many tokens as a maze.
  if (game == PuzzleGame::maze && data.kind != config::PuzzleFileKind::maze && cells == 16) return {};
  if (game == PuzzleGame::maze) {
    return [cells](const int32_t* question, const int32_t* answer) {
      const auto asked = maze_of(question, cells), found = maze_of(answer, cells);
      return asked && found && data::find_maze_fault(*asked).empty() && data::check_maze_answer(*asked, *found).valid;
    };
  }
  const auto geometry = game == PuzzleGame::sudoku ? geometry_of(cells, data) : std::nullopt;
  if (!geometry) return {};
  return [cells, vocabulary, geometry = *geometry](const int32_t* question, const int32_t* answer) {
    const auto givens = grid_of(question, cells, vocabulary), grid = grid_of(answer, cells, vocabulary);
    return givens && grid && data::is_solution(geometry, *givens, *grid);
  };
}

}  // namespace hrm::tasks
