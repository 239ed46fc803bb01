#pragma once
// Reads the records of a file in order: its lines (JSON Lines), or the elements of its single JSON array. Compressed
// files are decompressed on the fly (input_window.h).

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/jsonl.h"

namespace hrm {

// Whether a file name is that of a record file: *.jsonl or *.json in any case, or one of them with .gz or .zst.
bool is_record_file_name(const std::filesystem::path& path);

class RecordFile {
 public:
  // Throws Error(code) like InputWindow.
  explicit RecordFile(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object.
  RecordFile(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);

  // Returns false at the end. Skips blank lines. `record.number` is the line that the record begins on. `record.text`
  // is valid until the next call and is not parsed; a record above kMaxJsonlLine is truncated to kMaxJsonlLine + 1
  // bytes. Throws Error(code) as "file:line: reason" for an array that is not closed or has anything else between its
  // elements.
  bool next(JsonlLine& record);
  bool is_array() const { return is_array_; }

 private:
  void start();
  bool next_line(JsonlLine& record);
  bool next_element(JsonlLine& record);
  void skip_line();
  char next_character();
  std::string_view element();
  [[noreturn]] void fail_here(const char* reason) const;

  InputWindow input_;
  ExitCode code_;
  bool is_array_ = false, begun_ = false, ended_ = false;
  bool rest_follows_ = false;  // the rest of a line that was too long follows
  size_t line_ = 1;
};

// Advice for a line that is not JSON because its value continues on the next lines. Empty for any other line.
std::string spread_record_advice(std::string_view line);

}  // namespace hrm
