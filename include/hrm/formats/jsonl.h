#pragma once
// JSON Lines (https://jsonlines.org): one JSON value per line. Finds the lines and keeps an index file next to a large
// file. With the index, records can be read in any order and a restart need not read the whole file.

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

// Real records have kilobytes; a longer line counts as malformed, whatever its content.
inline constexpr uint64_t kMaxJsonlLine = uint64_t{16} << 20;

struct JsonlLine {
  uint64_t offset = 0;    // of its first byte
  size_t number = 0;      // 1-based
  std::string_view text;  // without line break; a view of the memory
};

// Iterates over the lines of mapped memory. Skips blank lines and a byte order mark at the beginning.
class JsonlLines {
 public:
  // `offset` and `number`: the line to start at.
  explicit JsonlLines(std::span<const std::byte> bytes, uint64_t offset = 0, size_t number = 1);
  // Returns false at the end.
  bool next(JsonlLine& line);
  // Where the next line begins; at the end, the size of the file.
  uint64_t offset() const { return at_; }
  size_t number() const { return number_; }

 private:
  std::string_view text_;
  uint64_t at_;
  size_t number_;
};

// The line at `offset`, which must be inside the memory. `number` stays 0.
JsonlLine jsonl_line_at(std::span<const std::byte> bytes, uint64_t offset);
// The 1-based number of the line at `offset`. Reads everything before it.
size_t jsonl_line_number(std::span<const std::byte> bytes, uint64_t offset);

// Throws Error(code), with only the reason, for a text that is longer than `most` bytes or not UTF-8.
void check_jsonl_line(std::string_view text, ExitCode code, uint64_t most = kMaxJsonlLine);

// Stored in the index for each record, besides its offset: two lengths chosen by the caller.
struct JsonlFacts {
  uint32_t first = 0;
  uint32_t second = 0;
};
// Checks one line. Throws Error, with only the reason, for a malformed line; the exit code is ignored.
using JsonlCheck = std::function<JsonlFacts(std::string_view line)>;

struct JsonlIndex {
  uint64_t file_bytes = 0;
  int64_t modified_ns = 0;          // mtime, in ns since 1970
  std::string probe;                // digest of pages sampled from the file
  std::string content;              // digest of the whole file
  std::string rules;                // digest of the rules that the caller's check depends on
  std::vector<uint64_t> offsets;    // of records, ascending
  std::vector<JsonlFacts> facts;    // one for each record
  std::vector<uint64_t> malformed;  // offsets of malformed lines, ascending

  uint64_t records() const { return offsets.size(); }
};

// Serializes an index to the bytes of its file, and back. Parsing throws Error(code), with only the reason, for bytes
// that are not an index, are damaged or point outside a file of `file_bytes`.
std::string jsonl_index_bytes(const JsonlIndex& index);
JsonlIndex parse_jsonl_index(std::span<const std::byte> bytes, ExitCode code);

struct JsonlIndexOptions {
  ExitCode code = ExitCode::data;
  std::string rules;           // any text that identifies the rules of `check`
  uint64_t max_malformed = 0;  // malformed lines to skip before failing
  uint64_t line_bytes = kMaxJsonlLine;
  bool progress = false;  // progress on stderr while a large file is read
};

// The index of a mapped file. Uses `<path>.idx` if it matches the file (size, mtime, pages, rules). Otherwise reads the
// whole file, and writes `.idx` if the folder is writable. Throws Error(code) if there are more than max_malformed
// malformed lines, with "file:line: reason" for the first ones. A file without records is also an error.
JsonlIndex index_jsonl(const MappedFile& file, const JsonlCheck& check, const JsonlIndexOptions& options);

// "file:line: reason" for the first `most` malformed lines.
std::vector<std::string> malformed_jsonl_lines(const MappedFile& file, const JsonlIndex& index, const JsonlCheck& check,
                                               uint64_t line_bytes, size_t most);

}  // namespace hrm
