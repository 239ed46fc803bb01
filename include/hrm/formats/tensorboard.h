#pragma once
// TensorBoard event files: protobuf Event messages in TFRecord frames (length, masked CRC-32C, data, masked CRC-32C).

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace hrm {

// CRC-32C (Castagnoli) of the text.
uint32_t crc32c(std::string_view text);

// Appends to one new event file. Records are buffered; flush() or the destructor writes them. Not thread-safe.
class TensorboardWriter {
 public:
  // Creates <directory>/events.out.tfevents.<time>.<host>.<pid><suffix>; the directory is created if needed. The time
  // is later than that of all files there: TensorBoard reads them in the order of their names. Throws
  // Error(environment).
  explicit TensorboardWriter(const std::filesystem::path& directory, const std::string& filename_suffix = "");
  ~TensorboardWriter();
  TensorboardWriter(TensorboardWriter&& other) noexcept;
  TensorboardWriter& operator=(TensorboardWriter&& other) noexcept;

  // wall_time: seconds since 1970; negative means now.
  void scalar(const std::string& tag, double value, int64_t step, double wall_time = -1);
  // Shown under "text", as Markdown.
  void text(const std::string& tag, const std::string& text, int64_t step = 0, double wall_time = -1);

  // A process continues here: what former files, or this one so far, hold of this step and later ones counts no more.
  // What is read behind it does.
  void restart(int64_t step, double wall_time = -1);

  // Hands everything to the operating system. Throws Error(environment), e.g. for a full disk.
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void record(const std::string& event);
  void close() noexcept;

  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
};

}  // namespace hrm
