#pragma once
// Small data sets for the tests of this folder.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "hrm/data/dataset.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace hrm::data {

using test::expect_error;

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(test::source_dir()) / "tests/fixtures" / name;
}
inline std::filesystem::path shipped(const std::string& name) {
  return std::filesystem::path(test::source_dir()) / "data/sudoku" / name;
}

// Groups of puzzles of examples with two tokens each: inputs (group + 1, example + 1), the same as labels. `sizes`
// gives, for each group, the number of examples of each of its puzzles. Identifiers count puzzles.
inline std::shared_ptr<PuzzleDataset> grouped_dataset(const std::vector<std::vector<int>>& sizes) {
  PuzzleRows rows;
  rows.meta.vocab_size = 250;
  rows.meta.seq_len = 2;
  rows.meta.num_puzzle_identifiers = 250;
  uint8_t example = 0;
  for (size_t group = 0; group < sizes.size(); ++group) {
    for (const int size : sizes[group]) {
      for (int i = 0; i < size; ++i) {
        for (std::vector<uint8_t>* tokens : {&rows.inputs, &rows.labels}) {
          tokens->push_back(static_cast<uint8_t>(group + 1));
          tokens->push_back(static_cast<uint8_t>(example + 1));
        }
        ++example;
      }
      rows.puzzle_indices.push_back(example);
      rows.puzzle_identifiers.push_back(static_cast<int32_t>(rows.puzzle_identifiers.size()));
    }
    rows.end_group();
  }
  return dataset_from_rows(std::move(rows), "memory");
}

// `groups` groups of one puzzle with one example.
inline std::shared_ptr<PuzzleDataset> single_dataset(int groups) {
  return grouped_dataset(std::vector<std::vector<int>>(groups, {1}));
}

}  // namespace hrm::data
