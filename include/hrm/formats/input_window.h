#pragma once
// Reads a data file once, sequentially. gzip and Zstandard files are decompressed on the fly, with only a window of the
// text in memory. A byte order mark at the beginning is skipped.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"

namespace hrm {

// The suffix of the content, in lower case: ".csv" for "S.CSV", "s.csv.gz" and "s.csv.zst".
std::string content_suffix(const std::filesystem::path& path);

class InputWindow {
 public:
  // Compression is detected by the first bytes, not by the name. Throws Error(code) for a file that cannot be read, is
  // of another kind (file_kind.h), or is compressed and damaged. Errors of the last kind may also come later, from
  // view().
  explicit InputWindow(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object.
  InputWindow(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);
  ~InputWindow();
  InputWindow(InputWindow&& other) noexcept;
  InputWindow& operator=(InputWindow&& other) noexcept;

  // The text from the current position: at least `least` bytes, fewer only at the end. For uncompressed files, all
  // remaining text. Valid until the next call of view().
  std::string_view view(size_t least);
  // Moves the position forward by `bytes`, within the last view.
  void skip(size_t bytes) { begin_ += bytes; }
  // Whether the last view reaches the end of the file.
  bool at_end() const { return !unpacker_; }
  const std::string& origin() const { return origin_; }
  // All remaining text, for files that are kept as a whole.
  std::string rest();

  class Unpacker;

 private:
  void start(std::span<const std::byte> bytes);
  void fill(size_t least);

  std::string origin_;
  ExitCode code_;
  std::optional<MappedFile> file_;
  std::unique_ptr<Unpacker> unpacker_;  // null at the end of what it unpacks, and where nothing is packed
  std::vector<char> buffer_;            // null for uncompressed data and at the end of compressed data
  const char* data_ = nullptr;          // decompressed text
  size_t begin_ = 0, end_ = 0;          // into the mapped file or the buffer
};

}  // namespace hrm
