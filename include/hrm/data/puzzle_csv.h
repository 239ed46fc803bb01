#pragma once
// Puzzles in CSV files with the columns source, question (or q, quizzes, puzzle), answer (or a, solutions, solution)
// and rating. Columns with other names can be selected. This covers the official Sudoku-Extreme and Maze-Hard files,
// Kaggle's files and the shipped ones. Files may be compressed with gzip or Zstandard.

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
  std::string question_field;  // column names; empty: one of the names above
  std::string answer_field;
  std::string field_settings = "data.question_field and data.answer_field";  // the settings' names, for messages
  int64_t min_rating = 0;                                                    // drop puzzles with a lower rating
  int64_t subsample = 0;                                                     // size of a random subset; 0 = all
  uint64_t seed = 0;                                                         // seeds the subsample
  // Always checked: characters, lengths, rules, and that the answer solves the question. If at most this many puzzles
  // are kept, each Sudoku is also solved to check that its solution is unique.
  int64_t check_unique_up_to = INT64_MAX;
  bool progress = false;  // a progress line on stderr
};

// Whether a file name is that of a puzzle table: *.csv, *.csv.gz or *.csv.zst, in any case.
bool is_puzzle_csv(const std::filesystem::path& path);

struct PuzzleCsv {
  PuzzleRows rows;          // each puzzle is its own group
  SudokuGeometry geometry;  // Sudoku only
  int64_t lines_read = 0;   // puzzles in the file before filtering
};

// Throws Error(data) as "file:line: reason", and Error(usage) for options that do not fit the data.
PuzzleCsv read_puzzle_csv(const std::filesystem::path& path, const PuzzleCsvOptions& options);

// The same from memory; `origin` replaces the file name in errors.
PuzzleCsv parse_puzzle_csv(std::span<const std::byte> bytes, const std::string& origin,
                           const PuzzleCsvOptions& options);

}  // namespace hrm::data
