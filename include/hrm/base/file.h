#pragma once
// Files: read-only maps, checked writes, atomic replacement. Every failure is an Error that names the path and the
// operating system's reason.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm {

// Whether a path may be a symbolic link. A name that was read from a file of somebody else may not.
enum class Links { follow, refuse };

// A file mapped read-only into memory; unmapped by the destructor. Spans handed out live as long as this object or the
// one it was moved into. A file that another process truncates while it is mapped raises SIGBUS on access: data files
// are replaced by rename, never rewritten in place.
class MappedFile {
 public:
  // Throws Error(code) if the file is missing, is not a regular file (a directory, a pipe) or cannot be read. With
  // Links::refuse it also refuses a path that is itself a symbolic link; folders of the path may be links.
  explicit MappedFile(const std::filesystem::path& path, ExitCode code = ExitCode::data, Links links = Links::follow);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The whole file; page-aligned, empty for an empty file.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // The whole pages of `part`, which is of bytes(), leave the process's memory until they are read again.
  void release(std::span<const std::byte> part) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The same memory as text and back.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The whole file as text. Throws Error(code), also for more than `most` bytes: then nothing has been read.
std::string read_text(const std::filesystem::path& path, ExitCode code, uint64_t most = UINT64_MAX);

// A file from which pieces are read. Unlike a map, a bad sector or a file that is cut meanwhile is an Error.
class FileReader {
 public:
  // As MappedFile.
  explicit FileReader(const std::filesystem::path& path, ExitCode code = ExitCode::data, Links links = Links::follow);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // When it was opened.
  uint64_t size() const { return size_; }
  // Fills `into` with the bytes from `offset` on. Throws Error(code), also where the file ends too early. From any
  // thread.
  void read(uint64_t offset, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  ExitCode code_;
  size_t size_ = 0;
  int fd_ = -1;
};

// Writes a new file from its beginning to its end. Without finish() the destructor closes what is there, unsynced.
class FileWriter {
 public:
  // Creates the file, which must not exist; links are not followed. `reserve`: bytes to allocate on the disk at once,
  // so a full disk shows before anything is written. Unused bytes are freed. Throws Error(environment) with the
  // operating system's reason.
  explicit FileWriter(const std::filesystem::path& path, uint64_t reserve = 0);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Throws Error(environment).
  void write(std::span<const std::byte> bytes);
  // Puts the file on the disk and closes it. Throws Error(environment).
  void finish();

  uint64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0, reserved_ = 0;
};

// Creates or overwrites the file with the parts in order, and fsyncs it. Throws Error(environment) with the reason,
// e.g. a full disk, and then leaves a partly written file. Where that matters, write to another name and rename.
void write_file(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Writes all of `bytes` to an open descriptor, through signals and short writes. Throws Error(environment) naming
// `path`.
void write_all(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes);

// Replaces the file so that a reader, or a crash, sees either the old or the new text: temporary file in the same
// folder, fsync, rename, fsync of the folder. Throws Error(environment).
void write_text_atomic(const std::filesystem::path& path, const std::string& text);

// Gives a file or a directory another name on the same file system, replacing a file or an empty directory that has it.
// Throws Error(environment). The directories above are not synced.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Creates one directory, which must not exist. Throws Error(environment).
void make_directory(const std::filesystem::path& path);

// Makes renames and new files in this folder durable. Throws Error(environment).
void fsync_directory(const std::filesystem::path& path);

// Creates the folder and its parents; a folder that exists is fine. Throws Error(environment).
void make_directories(const std::filesystem::path& path);

// Bytes that this process may still write on the file system that holds `path` (which must exist). Throws
// Error(environment).
uint64_t free_bytes(const std::filesystem::path& path);

}  // namespace hrm
