#include "hrm/train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hrm/base/error.h"
#include "hrm/base/file.h"

namespace hrm::train {

RunLog::RunLog(std::filesystem::path run_dir) : run_dir_(std::move(run_dir)) {
  if (run_dir_.empty()) return;
  make_directories(run_dir_);
  tensorboard_ = std::make_unique<TensorboardWriter>(run_dir_ / "tensorboard", ".hrm");
}

void RunLog::truncate_after(int64_t step) {
  if (run_dir_.empty()) return;
  const auto file = run_dir_ / "metrics.jsonl";
  if (!std::filesystem::exists(file)) return;
  std::istringstream lines(read_text(file, ExitCode::environment));
  std::string kept, line;
  bool dropped = false;
  while (std::getline(lines, line)) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line that a killed process left half-written is dropped as well.
    const bool keep = json.is_object() && json.contains("step") && json["step"].is_number() && json["step"] <= step;
    if (keep) kept += line + "\n";
    dropped |= !keep;
  }
  if (dropped) write_text_atomic(file, kept);
}

void RunLog::sync() {
  if (run_dir_.empty()) return;
  const int fd = open((run_dir_ / "metrics.jsonl").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;  // nothing was logged yet
  const bool done = fsync(fd) == 0;
  close(fd);
  require(done, ExitCode::environment, "cannot write '", (run_dir_ / "metrics.jsonl").string(), "' to the disk");
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
  std::ofstream out(run_dir_ / "metrics.jsonl", std::ios::app);
  out << line.dump() << std::endl;
  require(out.good(), ExitCode::environment, "cannot write '", (run_dir_ / "metrics.jsonl").string(),
          "': is the disk full?");
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& [key, value] : values) tensorboard_->scalar(key, static_cast<float>(value), step, now);
  tensorboard_->flush();
}

}  // namespace hrm::train
