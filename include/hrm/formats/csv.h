#pragma once
// CSV with a header row (RFC 4180, also with bare LF): quoted fields, doubled quotes, line breaks inside quotes.

#include <cstddef>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/input_window.h"

namespace hrm {

// One row; as many fields as the header has columns. The views are valid until the next call of CsvReader::next.
struct CsvRow {
  size_t line = 0;  // 1-based line on which the row starts
  std::vector<std::string_view> fields;
};

// Reads rows one after the other from mapped memory: unquoted fields are views of it, nothing is copied. Compressed
// files are unpacked as they are read (input_window.h); a row of theirs has at most 1 MiB.
class CsvReader {
 public:
  // Opens the file and reads its header row. Throws Error(code) as "file:line: reason".
  explicit CsvReader(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object.
  CsvReader(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);

  const std::vector<std::string>& columns() const { return columns_; }
  bool has_column(const std::string& name) const;
  // The index of a column. Throws Error(code) that lists the columns.
  size_t column(const std::string& name) const;

  // Returns false at the end. Blank lines are skipped. Throws Error(code) as "file:line: reason" for a wrong number of
  // fields, an unclosed quote, text after a closing quote or more than 4,096 fields.
  bool next(CsvRow& row);

  // For a caller that finds a field wrong: throws Error(code) "file:line: reason".
  [[noreturn]] void fail_at(size_t line, const std::string& reason) const;

 private:
  void start();
  bool read_fields(CsvRow& row);
  bool read_row(CsvRow& row);
  void read_quoted_row(CsvRow& row);
  void add_field(CsvRow& row, std::string_view field);

  std::string origin_;
  ExitCode code_;
  InputWindow input_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  size_t line_ = 1;
  std::vector<std::string> columns_;
  std::deque<std::string> unquoted_;  // fields of this row that had doubled quotes
};

}  // namespace hrm
