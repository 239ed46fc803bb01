#include "hrm/formats/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "hrm/base/text.h"

namespace hrm {
namespace {

// Of one row: each takes 16 bytes of memory, a comma one of the file.
constexpr size_t kMaxFields = 4096;
// A file that is not compressed is seen as a whole, and its rows are of any length.
constexpr size_t kMaxPackedRow = size_t{1} << 20;

const char* find_char(const char* at, const char* end, char c) {
  const void* found = at == end ? nullptr : std::memchr(at, c, static_cast<size_t>(end - at));
  return found ? static_cast<const char*>(found) : end;
}

std::string_view view(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

std::optional<double> csv_number(std::string_view field) {
  const size_t begin = field.find_first_not_of(" \t");
  if (begin == field.npos) return std::nullopt;
  const char* end = field.data() + field.find_last_not_of(" \t") + 1;
  double value = 0;
  const auto [stop, error] = std::from_chars(field.data() + begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

CsvReader::CsvReader(const std::filesystem::path& path, ExitCode code, CsvHeader header)
    : origin_(path.string()), code_(code), input_(path, code) {
  start(header);
}

CsvReader::CsvReader(std::span<const std::byte> bytes, const std::string& origin, ExitCode code, CsvHeader header)
    : origin_(origin), code_(code), input_(bytes, origin, code) {
  start(header);
}

void CsvReader::start(CsvHeader header) {
  CsvRow row;
  if (!read_fields(row)) {
    fail(code_, origin_, ": the file is empty", header == CsvHeader::required ? "; a header row is needed" : "");
  }
  const auto is_number = [](std::string_view field) { return csv_number(field).has_value(); };
  if (header == CsvHeader::unless_numbers && std::all_of(row.fields.begin(), row.fields.end(), is_number)) {
    has_header_ = false;
    for (size_t i = 1; i <= row.fields.size(); ++i) columns_.push_back(std::to_string(i));
    first_ = std::move(row);
    return;
  }
  for (const std::string_view field : row.fields) {
    if (std::find(columns_.begin(), columns_.end(), field) != columns_.end()) {
      fail_at(row.line, "the column '" + printable_start(field) + "' occurs twice in the header row");
    }
    columns_.emplace_back(field);
  }
}

bool CsvReader::has_column(const std::string& name) const {
  return std::find(columns_.begin(), columns_.end(), name) != columns_.end();
}

size_t CsvReader::column(const std::string& name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return static_cast<size_t>(found - columns_.begin());
  std::string list;
  for (const std::string& column : columns_) list += (list.empty() ? "" : ", ") + printable_start(column);
  fail(code_, origin_, ": there is no column '", name, "'; the columns are: ", list);
}

bool CsvReader::next(CsvRow& row) {
  if (first_) {
    row = std::move(*first_);
    first_.reset();
    return true;
  }
  if (!read_fields(row)) return false;
  if (row.fields.size() != columns_.size()) {
    fail_at(row.line, cat("the row has ", row.fields.size(), " fields, but the ", has_header_ ? "header" : "first",
                          " row has ", columns_.size()));
  }
  return true;
}

void CsvReader::fail_at(size_t line, const std::string& reason) const {
  fail(code_, origin_, ":", line, ": ", reason);
}

void CsvReader::add_field(CsvRow& row, std::string_view field) {
  if (row.fields.size() == kMaxFields) fail_at(row.line, cat("the row has more than ", kMaxFields, " fields"));
  row.fields.push_back(field);
}

// The next row that is not blank.
bool CsvReader::read_fields(CsvRow& row) {
  row.fields.clear();
  unquoted_.clear();
  while (true) {
    const std::string_view text = input_.view(kMaxPackedRow);
    if (text.empty()) return false;
    at_ = text.data();
    end_ = at_ + text.size();
    const bool is_row = read_row(row);
    require(at_ != end_ || input_.at_end(), code_, origin_, ":", row.line, ": the row has more than ",
            human_bytes(kMaxPackedRow));
    input_.skip(static_cast<size_t>(at_ - text.data()));
    if (is_row) return true;
  }
}

// From at_ on: false where blank lines are all that there is up to end_.
bool CsvReader::read_row(CsvRow& row) {
  while (at_ != end_) {
    row.line = line_;
    const char* newline = find_char(at_, end_, '\n');
    const char* stop = newline;
    if (stop != at_ && stop[-1] == '\r') --stop;
    const char* next = newline == end_ ? end_ : newline + 1;
    if (stop == at_) {  // blank line
      at_ = next;
      ++line_;
      continue;
    }
    if (find_char(at_, stop, '"') != stop) {
      read_quoted_row(row);
      return true;
    }
    while (true) {
      const char* comma = find_char(at_, stop, ',');
      add_field(row, view(at_, comma));
      if (comma == stop) break;
      at_ = comma + 1;
    }
    at_ = next;
    ++line_;
    return true;
  }
  return false;
}

// A row with at least one quote; it may span lines.
void CsvReader::read_quoted_row(CsvRow& row) {
  while (true) {
    if (at_ != end_ && *at_ == '"') {
      const char* begin = ++at_;
      std::string* copy = nullptr;  // from the first doubled quote on
      std::string_view field;
      while (true) {
        const char* quote = find_char(at_, end_, '"');
        line_ += static_cast<size_t>(std::count(at_, quote, '\n'));
        if (quote == end_) fail_at(row.line, "a quoted field is not closed");
        if (quote + 1 != end_ && quote[1] == '"') {
          if (!copy) copy = &unquoted_.emplace_back();
          copy->append(at_, quote + 1);
          at_ = quote + 2;
          continue;
        }
        if (copy) {
          copy->append(at_, quote);
          field = *copy;
        } else {
          field = view(begin, quote);
        }
        at_ = quote + 1;
        break;
      }
      add_field(row, field);
    } else {
      const char* begin = at_;
      while (at_ != end_ && *at_ != ',' && *at_ != '\n') {
        if (*at_ == '"') fail_at(line_, "a quote inside a field that does not start with one");
        ++at_;
      }
      const bool crlf = at_ != begin && at_[-1] == '\r' && (at_ == end_ || *at_ == '\n');
      add_field(row, view(begin, crlf ? at_ - 1 : at_));
    }
    if (at_ != end_ && *at_ == ',') {
      ++at_;
      continue;
    }
    if (at_ != end_ && *at_ == '\r' && (at_ + 1 == end_ || at_[1] == '\n')) ++at_;
    if (at_ == end_) return;
    if (*at_ != '\n') fail_at(line_, "text after the closing quote of a field");
    ++at_;
    ++line_;
    return;
  }
}

}  // namespace hrm
