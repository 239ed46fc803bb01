#include "commands/dashboard/run_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::dashboard {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr size_t kMaxFiles = 100;

// Names of a folder without . and .., hidden ones left out.
std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = own < 0 ? nullptr : fdopendir(own);
  if (entries == nullptr) {
    if (own >= 0) close(own);
    return names;
  }
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(entries);
  std::sort(names.begin(), names.end());
  return names;
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder.empty() || folder == "." ? name : folder + "/" + name;
}

bool is_regular(int folder, const std::string& name, struct stat& status) {
  return fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode);
}

bool is_folder(int folder, const std::string& name) {
  struct stat status {};
  return fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

RunFiles::RunFiles(const std::filesystem::path& folder)
    : folder_(folder), root_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  require(static_cast<bool>(root_), ExitCode::data, "cannot read the folder '", printable(folder.string()),
          "': ", std::strerror(errno), "; name a folder of runs, or a run");
}

// Without following links.
Descriptor RunFiles::open_folder(const std::string& path) const {
  Descriptor at(fcntl(root_.get(), F_DUPFD_CLOEXEC, 0));
  if (path == ".") return at;
  for (size_t begin = 0; at && begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    if (name.empty() || name == "." || name == ".." || name.find('\0') != name.npos) return Descriptor();
    at = Descriptor(openat(at.get(), name.c_str(), kFolderFlags));
    begin = end + 1;
  }
  return at;
}

Descriptor RunFiles::open(const std::string& run, const std::string& file) const {
  const size_t slash = file.rfind('/');
  const std::string name = slash == file.npos ? file : file.substr(slash + 1);
  const Descriptor folder = open_folder(slash == file.npos ? run : joined(run, file.substr(0, slash)));
  if (!folder || name.empty() || name == "." || name == ".." || name.find('\0') != name.npos) return Descriptor();
  // A pipe in its place must not be waited for.
  Descriptor opened(openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!opened || fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode)) return Descriptor();
  return opened;
}

std::vector<FoundRun> RunFiles::list() const {
  std::vector<FoundRun> runs;
  size_t folders = 0;
  const std::function<void(int, const std::string&, int)> look = [&](int at, const std::string& path, int depth) {
    if (++folders > kMaxFolders || runs.size() >= kMaxRuns) return;
    struct stat status {};
    if (is_regular(at, kMetrics, status)) {
      runs.push_back({path.empty() ? "." : path, static_cast<uint64_t>(status.st_size),
                      static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec)});
    }
    if (depth == kMaxDepth) return;
    for (const std::string& name : names_in(at)) {
      if (name == "checkpoints" || name == "tensorboard" || !is_folder(at, name)) continue;
      const Descriptor below(openat(at, name.c_str(), kFolderFlags));
      if (below) look(below.get(), joined(path, name), depth + 1);
    }
  };
  look(root_.get(), "", 0);
  return runs;
}

std::vector<FoundFile> RunFiles::files(const std::string& run, const std::string& ending) const {
  std::vector<FoundFile> found;
  const std::function<void(int, const std::string&, int)> look = [&](int at, const std::string& path, int depth) {
    for (const std::string& name : names_in(at)) {
      struct stat status {};
      if (found.size() >= kMaxFiles) return;
      if (is_regular(at, name, status)) {
        if (name.ends_with(ending)) found.push_back({joined(path, name), static_cast<uint64_t>(status.st_size)});
      } else if (depth < 2 && name != "checkpoints" && is_folder(at, name)) {
        struct stat run_status {};
        const Descriptor below(openat(at, name.c_str(), kFolderFlags));
        // A folder with metrics of its own is another run.
        if (below && !is_regular(below.get(), kMetrics, run_status)) look(below.get(), joined(path, name), depth + 1);
      }
    }
  };
  const Descriptor folder = open_folder(run);
  if (folder) look(folder.get(), "", 0);
  return found;
}

std::string read_end(int fd, uint64_t most) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return "";
  const auto size = static_cast<uint64_t>(status.st_size);
  const uint64_t begin = size > most ? size - most : 0;
  std::string text(size - begin, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace hrm::dashboard
