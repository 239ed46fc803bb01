#pragma once
// The runs below a folder, and their files. Names come from the file system, never from a request, and a file is opened
// component by component without following links, so nothing outside the folder is ever read.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hrm::dashboard {

// An open descriptor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct FoundRun {
  std::string name;  // path below the folder with slashes; "." for the folder itself. Any bytes
  uint64_t bytes = 0;
  double modified = 0;  // of metrics.jsonl, seconds since 1970
};

struct FoundFile {
  std::string name;  // below the run
  uint64_t bytes = 0;
};

class RunFiles {
 public:
  static constexpr int kMaxDepth = 8;           // of folders below the folder
  static constexpr size_t kMaxRuns = 1000;      // more are not listed
  static constexpr size_t kMaxFolders = 20000;  // looked into for one list

  // Throws Error(data) if the folder does not exist or cannot be read. The folder itself may be a link.
  explicit RunFiles(const std::filesystem::path& folder);

  // Folders with a regular file metrics.jsonl, by name. Links, hidden folders and checkpoints are not looked into.
  std::vector<FoundRun> list() const;

  // A regular file of a run, by its name in that run, e.g. log/rank_0.log. None where a component is a link or "..",
  // the file is no regular file, or it does not exist.
  Descriptor open(const std::string& run, const std::string& file) const;

  // Regular files of a run, at most two folders deep, with this ending; at most 100, by name.
  std::vector<FoundFile> files(const std::string& run, const std::string& ending) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  Descriptor open_folder(const std::string& path) const;

  std::filesystem::path folder_;
  Descriptor root_;
};

// The last `most` bytes of an open file, or all.
std::string read_end(int fd, uint64_t most);

}  // namespace hrm::dashboard
