#pragma once
// Hints for paths that hold data of an unsupported kind.

#include <filesystem>
#include <string>

namespace hrm::data {

// "; this is a Parquet file; make ..." for a file, or for the first such file in a folder. Also recognizes folders that
// datasets.save_to_disk wrote, and folders with tables. For a missing path that looks like a dataset on the Hugging
// Face Hub, says what to type. Empty otherwise.
std::string other_data(const std::filesystem::path& path);

// For a text table (*.csv, *.tsv) instead of records: the command that converts it to JSON lines. Otherwise empty.
std::string other_table(const std::filesystem::path& path);

}  // namespace hrm::data
