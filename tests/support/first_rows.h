#pragma once
// Small data for small runs: a program reads its data at each start and solves each puzzle again.

#include <filesystem>
#include <fstream>
#include <string>

#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::test {

// A file with the header and the first rows of a file of data/sudoku; it is there until the test program ends.
inline std::string first_rows(const std::string& name, int count) {
  static const TempDir folder;
  const std::filesystem::path file = folder / (std::to_string(count) + "_" + name);
  if (!std::filesystem::exists(file)) {
    std::ifstream in(source_dir() + "/data/sudoku/" + name);
    std::ofstream out(file);
    std::string line;
    for (int i = 0; i <= count && std::getline(in, line); ++i) out << line << "\n";
  }
  return file.string();
}

}  // namespace hrm::test
