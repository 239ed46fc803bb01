#pragma once
// Puzzles of any kind from CSV files and JSON lines, as symbols. `hrm_train data grid` and `data pairs` make a dataset
// of them. No tensors here.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hrm/data/puzzle_vocabulary.h"

namespace hrm::data {

// The symbols of a dataset, numbered from 0 as they are found.
class SymbolTable {
 public:
  // `alphabet`: all allowed symbols, one character each, in UTF-8; empty: symbols are collected. Throws Error(usage)
  // for a repeated symbol, for text that is not UTF-8, and for more than `most` symbols.
  SymbolTable(std::string_view alphabet, size_t most);

  // Throws Error(data), with only the reason, for a symbol that is not in the alphabet, and for more than `most`.
  uint8_t number(const std::string& text);
  const std::vector<std::string>& texts() const { return texts_; }
  // The order of tokens: as in the alphabet, otherwise by length, then by bytes. Entry i is the number of the i-th.
  std::vector<uint8_t> order() const;

 private:
  bool fixed_;
  size_t most_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint8_t> numbers_;
};

// One puzzle, as numbers of a SymbolTable.
struct PuzzleRecord {
  std::vector<uint8_t> question;  // (rows x cols) in row order; for pairs of any length
  std::vector<uint8_t> answer;    // as long as the question; for pairs of any length
  int64_t rows = 1, cols = 0;     // of a grid
  size_t line = 0;                // of its file, from 1
};

struct PuzzleRecordOptions {
  PuzzleForm form = PuzzleForm::grid;
  std::string question_field = "question";  // columns of a CSV file, or members of a JSON object
  std::string answer_field = "answer";
  // The shape of grids that are one string without line breaks; 0 = whatever fits, a square if both are 0.
  int64_t rows = 0;
  int64_t cols = 0;
};

// Reads *.csv, or JSON lines (*.jsonl, *.ndjson, *.json), which may be compressed (.gz, .zst). A byte order mark and
// CRLF are accepted. Throws Error(data) as "file:line: reason" for a malformed puzzle, and for a file without puzzles.
std::vector<PuzzleRecord> read_puzzle_records(const std::filesystem::path& path, const PuzzleRecordOptions& options,
                                              SymbolTable& symbols);

}  // namespace hrm::data
