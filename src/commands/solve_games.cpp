#include "commands/solve_games.h"

#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/data/cell_text.h"
#include "hrm/data/maze.h"
#include "hrm/tasks/puzzle_rules.h"

namespace hrm::commands {
namespace {

// One puzzle per line; a maze may also be its `columns` rows, one per line. Empty lines separate puzzles. Only the
// first field of a line with a comma or a tab counts (Sudoku), so later columns do no harm.
std::vector<Question> read_questions(std::istream& in, const std::string& origin, int64_t cells, int64_t columns,
                                     bool maze) {
  std::vector<Question> questions;
  std::string line, rows;
  int64_t number = 0, first_row = 0;
  while (std::getline(in, line)) {
    ++number;
    line = without_line_end(line);
    if (!maze) {
      const size_t end = line.find_first_of(",\t ");
      if (end != std::string::npos) line.resize(end);
      if (!line.empty()) questions.push_back({line, number});
      continue;
    }
    if (line.empty() && rows.empty()) continue;
    if (rows.empty()) first_row = number;
    // Editors strip blanks at the end of a row.
    if (static_cast<int64_t>(line.size()) < columns) line.resize(static_cast<size_t>(columns), ' ');
    rows += line;
    if (static_cast<int64_t>(rows.size()) >= cells) {
      questions.push_back({rows, first_row});
      rows.clear();
    }
  }
  require(rows.empty(), ExitCode::data, origin, ":", first_row, ": the maze has ", rows.size(), " cells instead of ",
          cells);
  require(!questions.empty(), ExitCode::data, origin, " holds no puzzle; give one a line, e.g. ",
          "..53.....8......2..7..1.5..4....53...1..7...6..32...8..6.5....9..4....3......97..");
  return questions;
}

// Puzzles with one character per cell.
class CharacterGame : public Game {
 public:
  std::string text(const Question&, std::span<const int64_t> tokens) const override {
    std::string text;
    for (const int64_t token : tokens) text += character(token);
    return text;
  }

 private:
  virtual char character(int64_t token) const = 0;
};

class SudokuGame : public CharacterGame {
 public:
  SudokuGame(data::SudokuGeometry geometry, std::string origin) : geometry_(geometry), origin_(std::move(origin)) {}

  std::vector<Question> read(std::istream& in) const override {
    return read_questions(in, origin_, geometry_.cells(), geometry_.size(), /*maze=*/false);
  }
  std::vector<int32_t> encode(const Question& question) const override {
    data::Grid grid;
    const std::string fault = data::parse_grid(geometry_, question.text, grid);
    require(fault.empty(), ExitCode::data, origin_, ":", question.line, ": the puzzle ", fault);
    const std::string conflict = data::find_conflict(geometry_, grid);
    require(conflict.empty(), ExitCode::data, origin_, ":", question.line,
            ": the puzzle contradicts itself: ", conflict);
    std::vector<int32_t> tokens;
    for (const uint8_t digit : grid) tokens.push_back(digit + 1);
    return tokens;
  }
  char character(int64_t token) const override {
    if (token < 1 || token >= geometry_.vocab_size()) return '?';
    return data::format_grid({static_cast<uint8_t>(token - 1)})[0];
  }
  std::optional<bool> valid(const std::string& question, const std::string& answer) const override {
    data::Grid givens, grid;
    return data::parse_grid(geometry_, question, givens).empty() && data::parse_grid(geometry_, answer, grid).empty() &&
           data::is_solution(geometry_, givens, grid);
  }
  bool is_given(char character) const override { return character != '.' && character != '0'; }
  int64_t columns() const override { return geometry_.size(); }
  const data::SudokuGeometry* geometry() const override { return &geometry_; }

 private:
  data::SudokuGeometry geometry_;
  std::string origin_;
};

class MazeGame : public CharacterGame {
 public:
  MazeGame(int64_t side, std::string origin) : side_(side), origin_(std::move(origin)) {}

  std::vector<Question> read(std::istream& in) const override {
    return read_questions(in, origin_, side_ * side_, side_, /*maze=*/true);
  }
  std::vector<int32_t> encode(const Question& question) const override {
    const std::string fault = data::find_maze_fault(question.text);
    require(fault.empty(), ExitCode::data, origin_, ":", question.line, ": the maze ", fault);
    std::vector<int32_t> tokens;
    for (const char c : question.text) tokens.push_back(data::maze_token(c));
    return tokens;
  }
  char character(int64_t token) const override { return token >= 1 && token <= 5 ? data::maze_character(token) : '?'; }
  std::optional<bool> valid(const std::string& question, const std::string& answer) const override {
    return data::check_maze_answer(question, answer).valid;
  }
  bool is_given(char character) const override { return character != ' '; }
  int64_t columns() const override { return side_; }

 private:
  int64_t side_;
  std::string origin_;
};

// Puzzles of any kind, with the symbols of the training data.
class VocabularyGame : public Game {
 public:
  VocabularyGame(data::PuzzleVocabulary vocabulary, std::string origin)
      : vocabulary_(std::move(vocabulary)), origin_(std::move(origin)) {}

  std::vector<Question> read(std::istream& in) const override {
    std::vector<Question> questions;
    std::string line;
    for (int64_t number = 1; std::getline(in, line); ++number) {
      line = without_line_end(line);
      if (!line.empty()) questions.push_back({line, number});
    }
    require(!questions.empty(), ExitCode::data, origin_,
            " holds no puzzle; give one a line, as a string or JSON array");
    return questions;
  }

  std::vector<int32_t> encode(const Question& question) const override {
    try {
      const data::Cells cells = cells_of(question.text);
      require(cells.rows <= vocabulary_.rows && cells.cols <= vocabulary_.cols, ExitCode::data, "has ",
              cells_text(cells, vocabulary_.form), "; the model takes at most ",
              is_grid() ? cat(vocabulary_.rows, "x", vocabulary_.cols) : cat(vocabulary_.cols));
      std::vector<int32_t> tokens(static_cast<size_t>(vocabulary_.cells()), 0);
      for (size_t i = 0; i < cells.texts.size(); ++i) {
        const std::optional<int32_t> token = vocabulary_.token(cells.texts[i]);
        require(token.has_value(), ExitCode::data, "has the symbol \"", cells.texts[i],
                "\", which is not in the model's vocabulary");
        tokens[place(cells, static_cast<int64_t>(i))] = *token;
      }
      return tokens;
    } catch (const Error& error) {
      fail(error.code(), origin_, ":", question.line, ": the puzzle ", error.what());
    }
  }

  std::string text(const Question& question, std::span<const int64_t> tokens) const override {
    data::Cells cells = cells_of(question.text);
    if (is_grid()) {
      for (size_t i = 0; i < cells.texts.size(); ++i) {
        cells.texts[i] = token_text(tokens[place(cells, static_cast<int64_t>(i))]);
      }
    } else {
      cells.texts.clear();
      for (const int64_t token : tokens) {
        if (token == data::kEndToken) break;
        cells.texts.push_back(token_text(token));
      }
      cells.cols = static_cast<int64_t>(cells.texts.size());
    }
    return format_cells(cells, vocabulary_.form);
  }

  std::optional<bool> valid(const std::string&, const std::string&) const override { return std::nullopt; }
  bool has_rules() const override { return false; }
  nlohmann::ordered_json json(const std::string& text) const override {
    if (!text.starts_with('[') || vocabulary_.token("[")) return text;
    return nlohmann::ordered_json::parse(text);  // format_cells wrote it, or cells_of has parsed it
  }
  bool is_given(char) const override { return false; }
  int64_t columns() const override { return vocabulary_.cols; }

 private:
  bool is_grid() const { return vocabulary_.form == data::PuzzleForm::grid; }

  // A string with as many cells as the padded grid has its shape; any other must be a square.
  data::Cells cells_of(const std::string& text) const {
    data::Cells cells = parse_cell_line(text, vocabulary_);
    const bool full = static_cast<int64_t>(cells.texts.size()) == vocabulary_.cells();
    shape_cells(cells, full ? vocabulary_.rows : 0, full ? vocabulary_.cols : 0, "; write its rows as a JSON array");
    return cells;
  }

  size_t place(const data::Cells& cells, int64_t i) const {
    return static_cast<size_t>(i / cells.cols * vocabulary_.cols + i % cells.cols);
  }

  std::string token_text(int64_t token) const {
    const std::string& text = vocabulary_.tokens.at(static_cast<size_t>(token));
    return text.empty() ? "?" : text;  // padding, which no label asks for
  }

  data::PuzzleVocabulary vocabulary_;
  std::string origin_;
};

}  // namespace

std::string without_line_end(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  return line;
}

nlohmann::ordered_json Game::json(const std::string& text) const {
  return text;
}

std::unique_ptr<Game> make_game(const tasks::PuzzleInference& loaded, const std::string& origin) {
  const auto& dims = loaded.model->dims();
  if (loaded.vocabulary) return std::make_unique<VocabularyGame>(*loaded.vocabulary, origin);
  const tasks::PuzzleGame game = tasks::game_of(dims, loaded.config.data);
  if (game == tasks::PuzzleGame::maze) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(dims.seq_len))));
    return std::make_unique<MazeGame>(side, origin);
  }
  require(game == tasks::PuzzleGame::sudoku, ExitCode::usage, "the model of '", loaded.checkpoint.string(), "' (",
          dims.seq_len, " cells, ", dims.vocab_size, " tokens) plays neither Sudoku nor mazes; use `hrm_train eval`");
  return std::make_unique<SudokuGame>(
      data::sudoku_geometry(dims.seq_len, loaded.config.data.box_rows, loaded.config.data.box_cols), origin);
}

}  // namespace hrm::commands
