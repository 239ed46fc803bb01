#pragma once
// A file of data that is read once, from its beginning to its end. Files of gzip and Zstandard are unpacked on the way,
// so that of them only a window is in memory. A byte order mark at the beginning is skipped.

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

// The suffix that says what is in a file, in lower case: ".csv" of "S.CSV", "s.csv.gz" and "s.csv.zst".
std::string content_suffix(const std::filesystem::path& path);

class InputWindow {
 public:
  // The first bytes of a file, not its name, show whether it is packed. Throws Error(code) for a file that cannot be
  // read, is of another kind (file_kind.h), or is packed and damaged; view() throws the same later.
  explicit InputWindow(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  // Reads memory that must outlive this object.
  InputWindow(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);
  ~InputWindow();
  InputWindow(InputWindow&& other) noexcept;
  InputWindow& operator=(InputWindow&& other) noexcept;

  // The text from here on: at least `least` bytes of it, fewer only at the end. Of a file that is not packed always all
  // that is left. Valid until the next call of view().
  std::string_view view(size_t least);
  // Goes on behind the first `bytes` of the last view.
  void skip(size_t bytes) { begin_ += bytes; }
  // Whether the last view reaches the end of the file.
  bool at_end() const { return !unpacker_; }
  const std::string& origin() const { return origin_; }
  // All that is left, for files that are kept as a whole.
  std::string rest();

  class Unpacker;

 private:
  void start(std::span<const std::byte> bytes);
  void fill(size_t least);

  std::string origin_;
  ExitCode code_;
  std::optional<MappedFile> file_;
  std::unique_ptr<Unpacker> unpacker_;  // null at the end of what it unpacks, and where nothing is packed
  std::vector<char> buffer_;            // of a packed file
  const char* data_ = nullptr;          // of the mapped file or the buffer
  size_t begin_ = 0, end_ = 0;
};

}  // namespace hrm
