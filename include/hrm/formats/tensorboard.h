#pragma once
// TensorBoard event files: protobuf Event messages in TFRecord frames (length, masked CRC-32C, data, masked CRC-32C).

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hrm {

// CRC-32C (Castagnoli) of the text.
uint32_t crc32c(std::string_view text);

// Appends to a new event file. Records are buffered until flush() or the destructor. Not thread-safe.
class TensorboardWriter {
 public:
  // Creates <directory>/events.out.tfevents.<time>.<host>.<pid><suffix>, and the directory if needed. The time is later
  // than that of all files there, because TensorBoard reads files in the order of their names. Throws
  // Error(environment).
  explicit TensorboardWriter(const std::filesystem::path& directory, const std::string& filename_suffix = "");
  ~TensorboardWriter();
  TensorboardWriter(TensorboardWriter&& other) noexcept;
  TensorboardWriter& operator=(TensorboardWriter&& other) noexcept;

  // `wall_time`: seconds since 1970; negative means now.
  void scalar(const std::string& tag, double value, int64_t step, double wall_time = -1);
  // All values of a step as one record, which takes about half the bytes of one record for each.
  void scalars(const std::vector<std::pair<std::string, double>>& values, int64_t step, double wall_time = -1);
  // TensorBoard shows it under "text", as Markdown.
  void text(const std::string& tag, const std::string& text, int64_t step = 0, double wall_time = -1);

  // Marks a restart at `step`: TensorBoard discards what earlier files, or this file so far, hold for this step and
  // later ones. Records written afterwards count.
  void restart(int64_t step, double wall_time = -1);

  // Writes all buffered records to the operating system. Throws Error(environment), e.g. for a full disk.
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
