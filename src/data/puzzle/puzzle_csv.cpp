#include "hrm/data/puzzle_csv.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/data/maze.h"
#include "hrm/formats/csv.h"
#include "hrm/formats/input_window.h"

namespace hrm::data {
namespace {

// A row parsed by the rules of its puzzle kind: the tokens, or what is wrong with the row.
struct Parsed {
  std::vector<uint8_t> input, label;
  std::string fault;
};

bool looks_like_maze(std::string_view question) {
  return question.find_first_of("#S") != std::string_view::npos;
}

Parsed parse_sudoku(const SudokuGeometry& geometry, std::string_view question, std::string_view answer) {
  Parsed parsed;
  Grid givens, solution;
  std::string fault = parse_grid(geometry, question, givens);
  if (!fault.empty()) return {{}, {}, "the question " + fault};
  fault = parse_grid(geometry, answer, solution);
  if (!fault.empty()) return {{}, {}, "the answer " + fault};
  fault = find_conflict(geometry, givens);
  if (!fault.empty()) return {{}, {}, "the givens contradict each other: " + fault};
  fault = find_conflict(geometry, solution);
  if (!fault.empty()) return {{}, {}, "the answer is not a solution: " + fault};
  for (size_t i = 0; i < givens.size(); ++i) {
    if (solution[i] == 0) return {{}, {}, cat("the answer is blank at character ", i + 1)};
    if (givens[i] != 0 && givens[i] != solution[i]) {
      return {{}, {}, cat("the answer does not match the given digit at character ", i + 1)};
    }
    parsed.input.push_back(static_cast<uint8_t>(givens[i] + 1));
    parsed.label.push_back(static_cast<uint8_t>(solution[i] + 1));
  }
  return parsed;
}

Parsed parse_maze(size_t cells, std::string_view question, std::string_view answer) {
  std::string fault = find_maze_fault(question);
  if (fault.empty() && question.size() != cells) {
    fault = cat("has ", question.size(), " characters, but the first maze has ", cells);
  }
  if (!fault.empty()) return {{}, {}, "the question " + fault};
  if (answer.size() != question.size()) {
    return {{}, {}, cat("the answer has ", answer.size(), " characters instead of ", question.size())};
  }
  if (!check_maze_answer(question, answer).valid) {
    return {{}, {}, "the answer is not the question with one path of 'o' from 'S' to 'G'"};
  }
  Parsed parsed;
  for (const char character : question) parsed.input.push_back(maze_token(character));
  for (const char character : answer) parsed.label.push_back(maze_token(character));
  return parsed;
}

std::string plain_name(std::string_view column) {
  const size_t first = std::min(column.find_first_not_of(" \t"), column.size());
  std::string name(column.substr(first, column.find_last_not_of(" \t") + 1 - first));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

// Other likely mistakes in a header row without puzzle columns.
std::string header_fault(const std::vector<std::string>& columns, const std::string& origin) {
  constexpr size_t kFewestCells = 16;
  for (const std::string& column : columns) {
    const bool grid = column.find_first_not_of("0123456789.") == column.npos || looks_like_maze(column);
    if (column.size() >= kFewestCells && grid) {
      return "; the first row is a puzzle already, so put a header row in front of it: question,answer";
    }
  }
  for (const auto& [mark, text] : {std::pair<char, const char*>{';', ";"}, {'\t', "\\t"}}) {
    if (columns.size() != 1 || columns[0].find(mark) == std::string::npos) continue;
    return cat("; fields must have commas between them: python3 -c \"import pandas; pandas.read_csv('",
               printable(origin), "', sep='", text, "', dtype=str).to_csv('commas.csv', index=False)\"");
  }
  return "";
}

class PuzzleCsvReader {
 public:
  PuzzleCsvReader(CsvReader reader, const std::string& origin, const PuzzleCsvOptions& options)
      : origin_(origin), options_(options), reader_(std::move(reader)) {
    question_ = find_column("question", options_.question_field, {"q", "question", "quizzes", "puzzle"});
    answer_ = find_column("answer", options_.answer_field, {"a", "answer", "solutions", "solution"});
    if (options_.min_rating > 0) rating_ = reader_.column("rating");
  }

  PuzzleCsv read() {
    CsvRow row;
    while (reader_.next(row)) {
      const std::string_view question = row.fields[question_], answer = row.fields[answer_];
      if (result_.lines_read++ == 0) start(row.line, question);
      if (options_.min_rating > 0 && rating_of(row) < options_.min_rating) continue;
      const Parsed parsed = maze_ ? parse_maze(static_cast<size_t>(result_.rows.meta.seq_len), question, answer)
                                  : parse_sudoku(result_.geometry, question, answer);
      if (!parsed.fault.empty()) reader_.fail_at(row.line, parsed.fault);
      result_.rows.inputs.insert(result_.rows.inputs.end(), parsed.input.begin(), parsed.input.end());
      result_.rows.labels.insert(result_.rows.labels.end(), parsed.label.begin(), parsed.label.end());
      lines_.push_back(row.line);
      if (options_.progress && lines_.size() % 65536 == 0) {
        log::progress(cat("reading ", origin_, ": ", lines_.size(), " puzzles"));
      }
    }
    if (options_.progress) log::progress_done();
    require(result_.lines_read > 0, ExitCode::data, origin_, ": holds no puzzles, only the header");
    require(!lines_.empty(), ExitCode::data, origin_, ": none of its ", result_.lines_read, " puzzles is rated ",
            options_.min_rating, " or above");
    if (options_.subsample > 0) subsample();
    if (!maze_ && static_cast<int64_t>(lines_.size()) <= options_.check_unique_up_to) check_unique();
    finish();
    return std::move(result_);
  }

 private:
  // The configured column, otherwise the first existing one of `usual`.
  size_t find_column(const char* what, const std::string& set, std::initializer_list<const char*> usual) const {
    if (!set.empty()) return reader_.column(set);
    for (const char* name : usual) {
      if (reader_.has_column(name)) return reader_.column(name);
    }
    // Ignores case and surrounding spaces.
    for (const char* name : usual) {
      for (size_t i = 0; i < reader_.columns().size(); ++i) {
        if (plain_name(reader_.columns()[i]) == name) return i;
      }
    }
    std::string names, columns;
    for (const char* name : usual) names += cat(names.empty() ? "" : ", ", name);
    for (const std::string& name : reader_.columns()) columns += (columns.empty() ? "" : ", ") + printable_start(name);
    fail(ExitCode::data, origin_, ": none of its columns is the ", what, " (", names, "); the columns are: ", columns,
         header_fault(reader_.columns(), origin_), "; name the right ones with ", options_.field_settings);
  }

  // The first puzzle determines the kind and size of the grids.
  void start(size_t line, std::string_view question) {
    maze_ = options_.kind == config::PuzzleFileKind::maze ||
            (options_.kind == config::PuzzleFileKind::automatic && looks_like_maze(question));
    PuzzleMeta& meta = result_.rows.meta;
    meta.ignore_label_id = 0;
    meta.seq_len = static_cast<int64_t>(question.size());
    if (maze_) {
      const std::string fault = find_maze_fault(question);
      if (!fault.empty()) reader_.fail_at(line, "the question " + fault);
      result_.rows.kind = PuzzleKind::maze;
      meta.vocab_size = kMazeVocabSize;
      return;
    }
    const int side = maze_side(question.size());
    if (side < 2 || side > kMaxSudokuSize) {
      reader_.fail_at(line, cat("the question has ", question.size(),
                                " characters, which is not a Sudoku (81 for 9x9, 36 for 6x6)"));
    }
    result_.geometry = sudoku_geometry(meta.seq_len, options_.box_rows, options_.box_cols);
    result_.rows.kind = PuzzleKind::sudoku;
    meta.vocab_size = result_.geometry.vocab_size();
  }

  int64_t rating_of(const CsvRow& row) const {
    const std::string_view text = row.fields[rating_];
    int64_t rating = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rating);
    if (error != std::errc() || end != text.data() + text.size()) {
      reader_.fail_at(row.line, cat("the rating \"", printable_start(text), "\" is not an integer"));
    }
    return rating;
  }

  // Keeps a random subset in file order.
  void subsample() {
    const int64_t count = static_cast<int64_t>(lines_.size());
    require(options_.subsample <= count, ExitCode::usage, "a subsample of ", options_.subsample,
            " puzzles cannot be taken of the ", count, " in ", origin_);
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), int64_t{0});
    CounterRng rng(options_.seed, Stream::subset, 0);
    for (int64_t i = 0; i < options_.subsample; ++i) {
      std::swap(order[i], order[i + rng.below(static_cast<uint32_t>(count - i))]);
    }
    order.resize(options_.subsample);
    std::sort(order.begin(), order.end());
    const int64_t length = result_.rows.meta.seq_len;
    for (int64_t i = 0; i < options_.subsample; ++i) {
      for (std::vector<uint8_t>* tokens : {&result_.rows.inputs, &result_.rows.labels}) {
        std::copy_n(tokens->begin() + order[i] * length, length, tokens->begin() + i * length);
      }
      lines_[i] = lines_[order[i]];
    }
    result_.rows.inputs.resize(options_.subsample * length);
    result_.rows.labels.resize(options_.subsample * length);
    lines_.resize(options_.subsample);
  }

  void check_unique() {
    const int64_t length = result_.rows.meta.seq_len;
    Grid givens(length);
    for (size_t i = 0; i < lines_.size(); ++i) {
      for (int64_t j = 0; j < length; ++j) givens[j] = static_cast<uint8_t>(result_.rows.inputs[i * length + j] - 1);
      // The answer was checked, so there is at least one solution.
      if (solve_sudoku(result_.geometry, givens).solutions != 1) {
        reader_.fail_at(lines_[i], "the puzzle has more than one solution");
      }
      if (options_.progress && (i + 1) % 4096 == 0) {
        log::progress(cat("solving ", origin_, ": ", i + 1, " of ", lines_.size(), " puzzles"));
      }
    }
    if (options_.progress) log::progress_done();
  }

  void finish() {
    const int32_t count = static_cast<int32_t>(lines_.size());
    PuzzleRows& rows = result_.rows;
    rows.puzzle_identifiers.assign(count, 0);
    rows.puzzle_indices.resize(count + 1);
    std::iota(rows.puzzle_indices.begin(), rows.puzzle_indices.end(), 0);
    rows.group_indices = rows.puzzle_indices;
  }

  std::string origin_;
  PuzzleCsvOptions options_;
  CsvReader reader_;
  size_t question_ = 0, answer_ = 0, rating_ = 0;
  bool maze_ = false;
  std::vector<size_t> lines_;  // line numbers of the puzzles kept
  PuzzleCsv result_;
};

}  // namespace

bool is_puzzle_csv(const std::filesystem::path& path) {
  return content_suffix(path) == ".csv";
}

PuzzleCsv read_puzzle_csv(const std::filesystem::path& path, const PuzzleCsvOptions& options) {
  return PuzzleCsvReader(CsvReader(path), path.string(), options).read();
}

PuzzleCsv parse_puzzle_csv(std::span<const std::byte> bytes, const std::string& origin,
                           const PuzzleCsvOptions& options) {
  return PuzzleCsvReader(CsvReader(bytes, origin), origin, options).read();
}

}  // namespace hrm::data
