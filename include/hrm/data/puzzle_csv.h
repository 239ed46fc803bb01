#pragma once
// Puzzles in CSV files with the columns source, question (or q, quizzes, puzzle), answer (or a, solutions, solution)
// and rating. These are the official Sudoku-Extreme and Maze-Hard files, the shipped ones and Kaggle's; or columns of
// any name. Files may be compressed by gzip or Zstandard.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "hrm/config/data_settings.h"
#include "hrm/data/dataset.h"
#include "hrm/data/sudoku.h"

namespace hrm::data {

struct PuzzleCsvOptions {
  config::PuzzleFileKind kind = config::PuzzleFileKind::automatic;
  int64_t box_rows = 0;  // 0 = square boxes, or 2x3 for 6x6
  int64_t box_cols = 0;
  std::string question_field;  // columns; empty: one of the names above
  std::string answer_field;
  std::string field_settings = "data.question_field and data.answer_field";  // what sets them, for messages
  int64_t min_rating = 0;                                                    // drop puzzles rated below
  int64_t subsample = 0;                                                     // keep this many at random; 0 = all
  uint64_t seed = 0;                                                         // of the subsample
  // Always checked: characters, lengths, rules, and that the answer solves the question. If at most this many puzzles
  // are kept, each Sudoku is also solved, to make sure that it has exactly one solution.
  int64_t check_unique_up_to = INT64_MAX;
  bool progress = false;  // a progress line on stderr
};

// Whether a file is one to read puzzles from: it is called *.csv, also in upper case, or *.csv.gz or *.csv.zst.
bool is_puzzle_csv(const std::filesystem::path& path);

struct PuzzleCsv {
  PuzzleRows rows;          // each puzzle its own group
  SudokuGeometry geometry;  // Sudoku only
  int64_t lines_read = 0;   // puzzles in the file, before selection
};

// Throws Error(data) "file:line: what is wrong"; Error(usage) for options that do not fit.
PuzzleCsv read_puzzle_csv(const std::filesystem::path& path, const PuzzleCsvOptions& options);

// The same from memory; `origin` stands for the file in errors.
PuzzleCsv parse_puzzle_csv(std::span<const std::byte> bytes, const std::string& origin,
                           const PuzzleCsvOptions& options);

}  // namespace hrm::data
