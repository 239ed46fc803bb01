#pragma once
// CSV with a header row (RFC 4180; bare LF also ends a line). Supports quoted fields, doubled quotes and line breaks
// inside quotes. Files of numbers alone may lack the header row.

#include <cstddef>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/input_window.h"

namespace hrm {

// One row, with as many fields as the header has columns. The views are valid until the next call of CsvReader::next.
struct CsvRow {
  size_t line = 0;  // 1-based line on which the row starts
  std::vector<std::string_view> fields;
};

// Whether the first row names the columns.
enum class CsvHeader {
  required,        // it does
  unless_numbers,  // it does, unless each of its fields is a finite number; columns are then called "1", "2", ...
};

// A finite number in a field, with spaces around it allowed; nothing for any other text.
std::optional<double> csv_number(std::string_view field);

// Reads rows sequentially from mapped memory. Unquoted fields are views of it; nothing is copied. Compressed files are
// decompressed on the fly (input_window.h); their rows have at most 1 MiB.
class CsvReader {
 public:
  // Opens the file and reads its header row. Throws Error(code) as "file:line: reason".
  explicit CsvReader(const std::filesystem::path& path, ExitCode code = ExitCode::data,
                     CsvHeader header = CsvHeader::required);
  // Reads memory that must outlive this object.
  CsvReader(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data,
            CsvHeader header = CsvHeader::required);

  const std::vector<std::string>& columns() const { return columns_; }
  // Whether the columns have names from the file.
  bool has_header() const { return has_header_; }
  bool has_column(const std::string& name) const;
  // The index of a column. If there is no such column, throws Error(code) that lists the columns.
  size_t column(const std::string& name) const;

  // Returns false at the end. Skips blank lines. Throws Error(code) as "file:line: reason" for a wrong number of
  // fields, more than 4,096 fields, an unclosed quote, or text after one.
  bool next(CsvRow& row);

  // For callers that find a malformed field: throws Error(code) as "file:line: reason".
  [[noreturn]] void fail_at(size_t line, const std::string& reason) const;

 private:
  void start(CsvHeader header);
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
  bool has_header_ = true;
  std::optional<CsvRow> first_;       // a first row of numbers, until next() returns it
  std::deque<std::string> unquoted_;  // fields of the current row that had doubled quotes
};

}  // namespace hrm
