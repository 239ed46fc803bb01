#include "checkpoint/output_file.h"

#include <unistd.h>

#include "hrm/base/file.h"

namespace hrm::checkpoint {
namespace fs = std::filesystem;

void replace_file(const fs::path& file, std::span<const std::byte> bytes) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const fs::path temporary = folder / cat(".tmp-", file.filename().string(), "-", ::getpid());
  std::error_code error;
  require(!fs::is_directory(file, error), ExitCode::environment, file, " is a folder, a file name is needed");
  // The rename below would put a file into the place of a device, or of a link such as /dev/stdout.
  const fs::file_status there = fs::symlink_status(file, error);
  require(!fs::exists(there) || fs::is_regular_file(there), ExitCode::environment, file,
          " is a link or a device, not a file; give the name of a file");
  make_directories(folder);
  try {
    write_file(temporary, bytes);
    fs::rename(temporary, file, error);
    if (error) fail(ExitCode::environment, "could not write ", file, ": ", error.message());
    fsync_directory(folder);
  } catch (...) {
    fs::remove(temporary, error);
    throw;
  }
}

}  // namespace hrm::checkpoint
