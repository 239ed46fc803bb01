#pragma once
// What stands where data are looked for, of kinds that this program does not read: with what to do.

#include <filesystem>
#include <string>

namespace hrm::data {

// "; this is a Parquet file; make ...", for a file or the first such file in a folder; or that the folder was written
// by datasets.save_to_disk, or holds tables. For a missing path: what to type if it is the name of a data set on the
// Hugging Face hub. Empty otherwise.
std::string other_data(const std::filesystem::path& path);

// Of a table in text (*.csv, *.tsv) instead of records: the line that makes JSON lines of it. Else empty.
std::string other_table(const std::filesystem::path& path);

}  // namespace hrm::data
