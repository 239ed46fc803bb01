#pragma once
// Vectors with labels from CSV files, and folders of them in the layout of hrm/data/vectors.h.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hrm/data/vectors.h"

namespace hrm::data {

// Rows in memory.
struct VectorRows {
  int64_t features = 0;
  std::vector<float> inputs;    // (N, features)
  std::vector<int64_t> labels;  // (N)

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  // Rows order[0], order[1], ... of these.
  VectorRows select(std::span<const int64_t> order) const;
};

// Reads a table of numbers, which may be compressed (*.csv.gz, *.csv.zst). A first row of numbers alone is data; any
// other one is the header. `label_column`: "last", "first", or a name of the header; a header's own column of that name
// comes first. Labels are whole numbers from 0. Throws Error(data) as "file:line: reason".
VectorRows read_vector_csv(const std::filesystem::path& path, const std::string& label_column);
// The same from memory; `origin` replaces the file name in errors.
VectorRows parse_vector_csv(std::span<const std::byte> bytes, const std::string& origin,
                            const std::string& label_column);

// The same rows as a data set. Throws as its constructor does.
VectorDataset vectors_of_rows(const VectorRows& rows, const std::string& origin);

// Writes <root>/<split>/inputs.npy and labels.npy. Inputs are uint8 if all values are whole numbers within 0 to 255,
// otherwise float32; labels are uint8 or int32. Throws Error(environment) if writing fails.
void write_vectors(const std::filesystem::path& root, const std::string& split, const VectorRows& rows);

}  // namespace hrm::data
