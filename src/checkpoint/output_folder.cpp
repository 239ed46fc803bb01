#include "checkpoint/output_folder.h"

#include <unistd.h>

#include "hrm/base/file.h"

namespace hrm::checkpoint {
namespace fs = std::filesystem;

void write_folder(const fs::path& folder, const std::function<void(const fs::path&)>& fill) {
  std::error_code error;
  require(!fs::exists(fs::symlink_status(folder)) || (fs::is_directory(folder) && fs::is_empty(folder, error)),
          ExitCode::environment, folder, " exists already; give the name of a new folder");
  const fs::path place = folder.has_filename() ? folder : folder.parent_path();
  const fs::path parent = place.has_parent_path() ? place.parent_path() : fs::path(".");
  const fs::path temporary = parent / cat(".tmp-", place.filename().string(), "-", ::getpid());
  make_directories(temporary);
  try {
    fill(temporary);
    fsync_directory(temporary);
    rename_path(temporary, place);
    fsync_directory(parent);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

}  // namespace hrm::checkpoint
