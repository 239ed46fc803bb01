#include "hrm/train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"

namespace hrm::train {

RunLog::RunLog(std::filesystem::path run_dir) : run_dir_(std::move(run_dir)), file_(run_dir_ / "metrics.jsonl") {
  if (run_dir_.empty()) return;
  make_directories(run_dir_);
  tensorboard_ = std::make_unique<TensorboardWriter>(run_dir_ / "tensorboard", ".hrm");
}

void RunLog::truncate_after(int64_t step) {
  if (run_dir_.empty()) return;
  tensorboard_->restart(step + 1);
  if (!std::filesystem::exists(file_)) return;
  std::istringstream lines(read_text(file_, ExitCode::environment));
  std::string kept, line;
  bool dropped = false;
  while (std::getline(lines, line)) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line that a killed process left half-written is dropped as well.
    const bool keep = json.is_object() && json.contains("step") && json["step"].is_number() && json["step"] <= step;
    if (keep) kept += line + "\n";
    dropped |= !keep;
  }
  if (dropped) write_text_atomic(file_, kept);
}

void RunLog::sync() {
  if (run_dir_.empty()) return;
  const std::lock_guard lock(mutex_);
  flush();
  const int fd = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;  // nothing was logged yet
  const bool done = fsync(fd) == 0;
  close(fd);
  require(done, ExitCode::environment, "cannot write '", file_.string(), "' to the disk");
}

void RunLog::write(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  if (run_dir_.empty()) return;
  nlohmann::ordered_json line;
  line["step"] = step;
  for (const auto& [key, value] : values) {
    if (std::isfinite(value)) {
      line[key] = value;
    } else {
      line[key] = nullptr;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_ += line.dump() + "\n";
    try {
      flush();
      if (std::exchange(failing_, false)) log::info("'", file_.string(), "' can be written again; no line was lost");
    } catch (const Error& error) {
      constexpr size_t kMost = size_t{64} << 20;
      require(waiting_.size() < kMost, ExitCode::environment, error.what(), "; ", waiting_.size(),
              " bytes of metrics wait for it");
      if (!std::exchange(failing_, true)) log::warn(error.what(), "; the lines are kept in memory until they can be");
    }
  }
  write_tensorboard(step, values);
}

// Appends what waits, all or nothing: after a write that stopped in the middle of a line the file is cut back.
void RunLog::flush() {
  if (waiting_.empty()) return;
  const int fd = open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const int error = failpoint::errno_of(failpoint::hit(Failpoint::metrics_write));
  require(fd >= 0 && error == 0, ExitCode::environment, "cannot write '", file_.string(),
          "': ", std::strerror(error != 0 ? error : errno));
  const off_t end = lseek(fd, 0, SEEK_END);
  try {
    write_all(fd, file_, as_bytes(waiting_));
  } catch (...) {
    // Where even this fails, the half line is dropped when a run reads its log (truncate_after).
    [[maybe_unused]] const int result = ftruncate(fd, end);
    close(fd);
    throw;
  }
  close(fd);
  waiting_.clear();
}

// A picture of the run, not its record: what cannot be written is skipped.
void RunLog::write_tensorboard(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  try {
    tensorboard_->scalars(values, step, now);
    const int error = failpoint::errno_of(failpoint::hit(Failpoint::tensorboard_write));
    require(error == 0, ExitCode::environment, std::strerror(error));
    tensorboard_->flush();
    if (std::exchange(tensorboard_failing_, false)) {
      log::info("TensorBoard records can be written again; ", records_lost_, " were lost");
    }
  } catch (const Error& error) {
    records_lost_ += static_cast<int64_t>(values.size());
    if (!std::exchange(tensorboard_failing_, true)) log::warn("TensorBoard records are lost: ", error.what());
  }
}

}  // namespace hrm::train
