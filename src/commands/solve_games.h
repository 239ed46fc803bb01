#pragma once
// Text and tokens of the puzzles that `solve` reads, and their rules.

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hrm/data/sudoku.h"
#include "hrm/tasks/puzzle_inference.h"

namespace hrm::commands {

// One puzzle as text: what people type, and what the answer is printed as.
struct Question {
  std::string text;  // S characters of a Sudoku or maze; with a vocabulary a string or a JSON array
  int64_t line = 0;  // of the input, for messages
};

std::string without_line_end(std::string line);

class Game {
 public:
  virtual ~Game() = default;
  // All puzzles of the input, at least one. Throws Error(data).
  virtual std::vector<Question> read(std::istream& in) const = 0;
  // (S) tokens. Throws Error(data) as "origin:line: reason" for a text that is no puzzle.
  virtual std::vector<int32_t> encode(const Question& question) const = 0;
  // The text of (S) tokens that answer the question.
  virtual std::string text(const Question& question, std::span<const int64_t> tokens) const = 0;
  // Nothing if the rules are not known.
  virtual std::optional<bool> valid(const std::string& question, const std::string& answer) const = 0;
  virtual bool has_rules() const { return true; }
  // A question or an answer as a value of --format jsonl.
  virtual nlohmann::ordered_json json(const std::string& text) const;

  // For --watch, of games with rules.
  virtual bool is_given(char character) const = 0;
  virtual int64_t columns() const = 0;
  virtual const data::SudokuGeometry* geometry() const { return nullptr; }
};

// The game of a model: by the vocabulary of its training data, or else Sudoku or mazes by its sizes. `origin`: the
// input, for messages. Throws Error(usage) if the model plays none of these.
std::unique_ptr<Game> make_game(const tasks::PuzzleInference& loaded, const std::string& origin);

}  // namespace hrm::commands
