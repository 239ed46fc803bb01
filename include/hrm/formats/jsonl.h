#pragma once
// JSON Lines (https://jsonlines.org): one JSON value per line. Finds the lines, and keeps an index beside a large file,
// so records can be read in any order and a second start need not read the whole file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"

namespace hrm {

// Real records take kilobytes; a longer line is malformed, whatever is in it.
inline constexpr uint64_t kMaxJsonlLine = uint64_t{16} << 20;

struct JsonlLine {
  uint64_t offset = 0;    // of its first byte
  size_t number = 0;      // 1-based
  std::string_view text;  // without line break; a view of the memory
};

// Goes through the lines of mapped memory. Blank lines are skipped; a byte order mark at the beginning, too.
class JsonlLines {
 public:
  // `offset` and `number`: where to start, the beginning of a line.
  explicit JsonlLines(std::span<const std::byte> bytes, uint64_t offset = 0, size_t number = 1);
  // False at the end.
  bool next(JsonlLine& line);
  // Where the next line begins; the size of the file at its end.
  uint64_t offset() const { return at_; }
  size_t number() const { return number_; }

 private:
  std::string_view text_;
  uint64_t at_;
  size_t number_;
};

// The line that begins at `offset`, which must lie in the memory. `number` stays 0.
JsonlLine jsonl_line_at(std::span<const std::byte> bytes, uint64_t offset);
// The 1-based number of the line that begins at `offset`; reads everything before it.
size_t jsonl_line_number(std::span<const std::byte> bytes, uint64_t offset);

// Throws Error(code) with the reason alone for a text that is not a record's: longer than `most` bytes, not UTF-8.
void check_jsonl_line(std::string_view text, ExitCode code, uint64_t most = kMaxJsonlLine);

// What the index keeps of a record beside its offset: two lengths of the caller's choice.
struct JsonlFacts {
  uint32_t first = 0;
  uint32_t second = 0;
};
// Reads one line. Throws Error with the reason alone for a malformed one; its exit code is not looked at.
using JsonlCheck = std::function<JsonlFacts(std::string_view line)>;

struct JsonlIndex {
  uint64_t file_bytes = 0;
  int64_t modified_ns = 0;          // since 1970
  std::string probe;                // digest of pages spread over the file
  std::string content;              // digest of the whole file
  std::string rules;                // digest of what the caller's check depends on
  std::vector<uint64_t> offsets;    // of the records, ascending
  std::vector<JsonlFacts> facts;    // one for each record
  std::vector<uint64_t> malformed;  // offsets of malformed lines, ascending

  uint64_t records() const { return offsets.size(); }
};

// Converts an index to the bytes of its file and back. parse_jsonl_index throws Error(code) with only the reason for
// bytes that are not an index, are damaged, or point outside a file of `file_bytes`.
std::string jsonl_index_bytes(const JsonlIndex& index);
JsonlIndex parse_jsonl_index(std::span<const std::byte> bytes, ExitCode code);

struct JsonlIndexOptions {
  ExitCode code = ExitCode::data;
  std::string rules;           // any text that names the rules of `check`
  uint64_t max_malformed = 0;  // lines that are skipped before it is an error
  uint64_t line_bytes = kMaxJsonlLine;
  bool progress = false;  // a line on stderr while a large file is read
};

// The index of a mapped file, from `<path>.idx` if that fits the file (size, mtime, pages, rules). Otherwise reads the
// whole file and writes `.idx` if the folder allows it. Throws Error(code): "file:line: reason" of the first malformed
// lines if there are more than max_malformed, and for a file without any record.
JsonlIndex index_jsonl(const MappedFile& file, const JsonlCheck& check, const JsonlIndexOptions& options);

// "file:line: reason" of the first `most` malformed lines.
std::vector<std::string> malformed_jsonl_lines(const MappedFile& file, const JsonlIndex& index, const JsonlCheck& check,
                                               uint64_t line_bytes, size_t most);

}  // namespace hrm
