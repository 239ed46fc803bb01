#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"

namespace hrm::train {
namespace {

namespace fs = std::filesystem;

std::string now_text() {
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return when;
}

// "process 4711 on node1 since 2026-01-31T12:00:00Z"
std::string owner_text() {
  std::string text = cat("process ", ::getpid(), " on ", host_name(), " since ", now_text());
  if (const char* job = std::getenv("SLURM_JOB_ID")) text += cat(", job ", job);
  return text;
}

std::string read_owner(int fd) {
  char text[256];
  const ssize_t size = pread(fd, text, sizeof text, 0);
  if (size <= 0) return "";
  return printable(std::string_view(text, static_cast<size_t>(size)).substr(0, static_cast<size_t>(size - 1)));
}

void check_owner(const fs::path& run_dir) {
  struct stat info {};
  require(stat(run_dir.c_str(), &info) == 0, ExitCode::environment, "cannot read the run folder '", run_dir.string(),
          "': ", std::strerror(errno));
  require(info.st_uid == geteuid() || geteuid() == 0, ExitCode::environment, "the run folder '", run_dir.string(),
          "' belongs to another user, who could change its checkpoints; choose another run.dir");
  require((info.st_mode & S_IWOTH) == 0, ExitCode::environment, "everyone may write in the run folder '",
          run_dir.string(), "' and change its checkpoints; chmod o-w it, or choose another run.dir");
}

// What killed processes left of files that they were about to replace (write_text_atomic): "config.json.tmp4711". Only
// who holds the lock may call it.
void remove_leftovers(const fs::path& run_dir) {
  constexpr std::string_view kMark = ".tmp";
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir, ignored)) {
    const std::string name = entry.path().filename().string();
    const size_t mark = name.rfind(kMark);
    if (mark == std::string::npos || mark + kMark.size() == name.size()) continue;
    if (name.find_first_not_of("0123456789", mark + kMark.size()) != std::string::npos) continue;
    if (entry.is_regular_file(ignored)) fs::remove(entry.path(), ignored);
  }
}

bool starts_with_any(std::string_view name) {
  constexpr std::array kPrefixes = {"CUDA_", "CUBLAS_", "CUDNN_", "NCCL_",  "GLOO_", "TORCH_",  "PYTORCH_", "OMP_",
                                    "MKL_",  "ONEDNN_", "HRM_",   "SLURM_", "OMPI_", "MASTER_", "LD_"};
  constexpr std::array kNames = {"RANK",          "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_ARENA_MAX",
                                 "GLIBC_TUNABLES"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); }) ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool tells_a_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::array kWords = {"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](const char* word) { return name.find(word) != std::string::npos; });
}

nlohmann::ordered_json variables() {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  std::sort(entries.begin(), entries.end());
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    if (!starts_with_any(name)) continue;
    json[printable(name)] = tells_a_secret(name) ? "(not written)" : printable(entry.substr(equals + 1));
  }
  return json;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

void set_creation_mask(bool group_readable) {
  umask(group_readable ? 0027 : 0077);
}

RunLock::RunLock(const fs::path& run_dir) {
  make_directories(run_dir);
  check_owner(run_dir);
  const fs::path file = run_dir / ".lock";
  fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  require(fd_ >= 0, ExitCode::environment, "cannot write in the run folder '", run_dir.string(),
          "': ", std::strerror(errno), "; choose another run.dir");
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string owner = read_owner(fd_);
    close(fd_);
    require(error != EWOULDBLOCK, ExitCode::environment, "another process trains in '", run_dir.string(), "'",
            owner.empty() ? "" : cat(" (", owner, ")"), "; stop it, or choose another run.name");
    fail(ExitCode::environment, "cannot lock '", file.string(), "': ", std::strerror(error),
         "; choose another run.dir");
  }
  remove_leftovers(run_dir);
  // For people alone: a disk that has no room for it is no reason to stop here.
  const std::string text = owner_text() + "\n";
  if (ftruncate(fd_, 0) != 0 || pwrite(fd_, text.data(), text.size(), 0) < 0) return;
}

RunLock::~RunLock() {
  close(fd_);
}

void write_environment(const fs::path& run_dir, const Runtime& runtime) {
  nlohmann::ordered_json json;
  json["started"] = now_text();
  json["host"] = host_name();
  json["device"] = runtime.device_name;
  json["precision"] = runtime.precision.name;
  json["allocator"] = runtime.allocator;
  json["peak_flops_assumed"] = runtime.peak_flops;
  json["peak_flops_origin"] = runtime.peak_flops_origin;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["variables"] = variables();
  write_text_atomic(run_dir / "environment.json", json.dump(2) + "\n");
}

}  // namespace hrm::train
