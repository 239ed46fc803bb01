#pragma once
// Writes a file that is packed by gzip.

#include <filesystem>
#include <memory>
#include <string_view>

namespace hrm {

class GzipWriter {
 public:
  // Creates the file, which must not exist. Throws Error(environment).
  explicit GzipWriter(const std::filesystem::path& path);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  // Throws Error(environment).
  void write(std::string_view text);
  // Writes the checksum and puts the file on the disk. Without it the file is not complete. Throws Error(environment).
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hrm
