#pragma once
// The records of a file, one after the other: its lines (JSON Lines), or the elements of the one JSON array that it is.
// A compressed file is unpacked as it is read (input_window.h).

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/jsonl.h"

namespace hrm {

// Whether a file is called as one of records: *.jsonl or *.json, also in upper case, or one of them with .gz or .zst.
bool is_record_file_name(const std::filesystem::path& path);

class RecordFile {
 public:
  // Throws Error(code) as InputWindow.
  explicit RecordFile(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object.
  RecordFile(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);

  // Returns false at the end. Blank lines are skipped. `record.number` is the line that it begins on. `record.text` is
  // valid until the next call and is not parsed; of a record above kMaxJsonlLine it holds only the first kMaxJsonlLine
  // + 1 bytes. Throws Error(code) "file:line: reason" for an array that is not closed or has something else between its
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
  bool rest_follows_ = false;  // of a line that was too long
  size_t line_ = 1;
};

// For a line that is no JSON because its value continues in the next ones: what to do. Empty for any other line.
std::string spread_record_advice(std::string_view line);

}  // namespace hrm
