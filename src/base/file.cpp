#include "hrm/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "hrm/base/failpoint.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) {
  return std::system_category().message(error);
}

// A file descriptor that is closed on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  int close() {
    const int result = ::close(release());
    return result != 0 && errno != EINTR ? -1 : 0;
  }

 private:
  int fd_;
};

int open_retrying(const fs::path& path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Opens a regular, readable file and returns its size.
int open_for_reading(const fs::path& path, ExitCode code, size_t* size, Links links = Links::follow) {
  // O_NONBLOCK: to open a pipe would wait for its writer. It changes nothing for regular files.
  const int fd = open_retrying(path, O_RDONLY | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0));
  if (fd < 0) {
    if (errno == ELOOP && links == Links::refuse) {
      fail(code, "'", path.string(), "' is a symbolic link; the file itself is needed here");
    }
    if (errno == ENOENT || errno == ENOTDIR) fail(code, "the file '", path.string(), "' does not exist");
    fail(code, "cannot read '", path.string(), "': ", reason(errno));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    fail(code, "cannot read '", path.string(), "': ", reason(error));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(code, "'", path.string(), "' is ", S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
         "; a file is needed here");
  }
  *size = static_cast<size_t>(info.st_size);
  return fd;
}

[[noreturn]] void fail_write(const fs::path& path, int error) {
  fail(ExitCode::environment, "cannot write '", path.string(), "': ", reason(error));
}

// A system call at a failpoint, repeated when a signal interrupts it: its result, or -1 with errno.
template <class Call>
auto checked(Failpoint point, Call&& call) {
  decltype(call()) result;
  do {
    if (const int error = failpoint::errno_of(failpoint::hit(point))) {
      errno = error;
      result = -1;
    } else {
      result = call();
    }
  } while (result < 0 && errno == EINTR);
  return result;
}

void fsync_or_fail(int fd, const fs::path& path, Failpoint point) {
  // Some file systems cannot sync folders or special files and say EINVAL or ENOTSUP: nothing more can be done there.
  if (checked(point, [&] { return ::fsync(fd); }) != 0 && errno != EINVAL && errno != ENOTSUP) fail_write(path, errno);
}

// Opens for writing.
int create_file(const fs::path& path, int flags) {
  return checked(Failpoint::file_open,
                 [&] { return ::open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0666); });
}

// close() reports errors of delayed writes (NFS, quotas), so a writer asks for its result. The descriptor is gone after
// EINTR too, and the data were fsynced before.
void close_or_fail(Descriptor& file, const fs::path& path) {
  const int error = failpoint::errno_of(failpoint::hit(Failpoint::file_close));
  if (file.close() != 0) fail_write(path, errno);
  if (error != 0 && error != EINTR) fail_write(path, error);
}

// Writes `path`; messages name `shown`, for which it stands.
void write_parts(const fs::path& path, const fs::path& shown, std::span<const std::span<const std::byte>> parts) {
  Descriptor file(create_file(path, O_TRUNC));
  if (file.get() < 0) fail_write(shown, errno);
  for (const auto& part : parts) write_all(file.get(), shown, part);
  fsync_or_fail(file.get(), shown, Failpoint::file_fsync);
  close_or_fail(file, shown);
}

}  // namespace

MappedFile::MappedFile(const fs::path& path, ExitCode code, Links links) : path_(path) {
  const Descriptor file(open_for_reading(path, code, &size_, links));
  if (size_ == 0) return;  // mmap refuses empty ranges
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) fail(code, "cannot map '", path.string(), "' into memory: ", reason(errno));
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (static_cast<size_t>(part.data() - data_) + page - 1) / page * page;
  const size_t end = static_cast<size_t>(part.data() - data_) + part.size();
  const size_t last = end == size_ ? end : end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text(const fs::path& path, ExitCode code, uint64_t most) {
  size_t size = 0;
  const Descriptor file(open_for_reading(path, code, &size));
  const auto check = [&](uint64_t bytes) {
    if (bytes > most) fail(code, "'", path.string(), "' is larger than the ", human_bytes(most), " that are read here");
  };
  check(size);
  std::string text;
  // The size is only a hint: files under /proc report zero.
  text.resize(size + 1);
  size_t used = 0;
  while (true) {
    if (used == text.size()) text.resize(2 * text.size());
    const ssize_t got = ::read(file.get(), text.data() + used, std::min(text.size() - used, size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(code, "cannot read '", path.string(), "': ", reason(errno));
    if (got == 0) break;
    used += static_cast<size_t>(got);
    check(used);
  }
  text.resize(used);
  return text;
}

FileReader::FileReader(const fs::path& path, ExitCode code, Links links)
    : path_(path), code_(code), fd_(open_for_reading(path, code, &size_, links)) {}

FileReader::~FileReader() {
  ::close(fd_);
}

void FileReader::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd_, into.data(), std::min(into.size(), size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(code_, "cannot read '", path_.string(), "': ", reason(errno));
    if (got == 0) fail(code_, "'", path_.string(), "' ends at ", offset, " bytes, of which it had ", size_);
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
}

void write_all(int fd, const fs::path& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes at most 2 GiB at once; smaller pieces keep signals responsive.
    size_t size = std::min(bytes.size(), size_t{64} << 20);
    const auto action = failpoint::hit(Failpoint::file_write);
    if (action == failpoint::Action::short_write) size = (size + 1) / 2;
    errno = failpoint::errno_of(action);
    const ssize_t written = errno != 0 ? -1 : ::write(fd, bytes.data(), size);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_write(path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

FileWriter::FileWriter(const fs::path& path, uint64_t reserve) : path_(path), reserved_(reserve) {
  Descriptor file(create_file(path, O_EXCL | O_NOFOLLOW));
  if (file.get() < 0) fail_write(path, errno);
  if (reserve > 0) {
    const int result =
        checked(Failpoint::file_reserve, [&] { return ::fallocate(file.get(), 0, 0, static_cast<off_t>(reserve)); });
    // NFS of old and some others know no reservation: then the writes tell.
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail_write(path, errno);
  }
  fd_ = file.release();
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_all(fd_, path_, bytes);
  size_ += bytes.size();
}

void FileWriter::finish() {
  Descriptor file(std::exchange(fd_, -1));
  if (reserved_ > size_ && ::ftruncate(file.get(), static_cast<off_t>(size_)) != 0) fail_write(path_, errno);
  fsync_or_fail(file.get(), path_, Failpoint::file_fsync);
  close_or_fail(file, path_);
}

void write_file(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  write_parts(path, path, parts);
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  write_file(path, std::span<const std::span<const std::byte>>(&bytes, 1));
}

void write_text_atomic(const fs::path& path, const std::string& text) {
  const std::span<const std::byte> bytes = as_bytes(text);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    write_file(path, bytes);  // a device or a pipe: a rename would put a file into its place
    return;
  }
  // The file behind a link is replaced, not the link: /dev/stdout is one.
  fs::path target = fs::is_symlink(path, error) ? fs::canonical(path, error) : path;
  if (error) target = path;
  // The process id keeps two writers from sharing one temporary file.
  const fs::path temporary = target.string() + ".tmp" + std::to_string(::getpid());
  try {
    write_parts(temporary, path, std::span<const std::span<const std::byte>>(&bytes, 1));
    if (checked(Failpoint::file_rename, [&] { return ::rename(temporary.c_str(), target.c_str()); }) != 0) {
      fail_write(path, errno);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_directory(target.has_parent_path() ? target.parent_path() : fs::path("."));
}

void fsync_directory(const fs::path& path) {
  const Descriptor directory(open_retrying(path, O_RDONLY | O_DIRECTORY));
  if (directory.get() < 0) {
    fail(ExitCode::environment, "cannot open the folder '", path.string(), "': ", reason(errno));
  }
  fsync_or_fail(directory.get(), path, Failpoint::directory_fsync);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (checked(Failpoint::file_rename, [&] { return ::rename(from.c_str(), to.c_str()); }) == 0) return;
  const int error = errno;
  fail(ExitCode::environment, "could not rename ", from, " to ", to, ": ", reason(error));
}

void make_directory(const fs::path& path) {
  if (checked(Failpoint::directory_create, [&] { return ::mkdir(path.c_str(), 0777); }) == 0) return;
  const int error = errno;
  fail(ExitCode::environment, "could not create ", path, ": ", reason(error));
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  // create_directories reports success for an existing file of that name on some versions.
  if (!error && !fs::is_directory(path, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (error) fail(ExitCode::environment, "cannot create the folder '", path.string(), "': ", error.message());
}

uint64_t free_bytes(const fs::path& path) {
  struct statvfs info {};
  int result;
  do {
    result = ::statvfs(path.c_str(), &info);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    fail(ExitCode::environment, "cannot ask for the free space at '", path.string(), "': ", reason(errno));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace hrm
