#include "train/trace_window.h"

#include <algorithm>
#include <utility>

#include "hrm/base/file.h"
#include "hrm/base/log.h"

namespace hrm::train {

TraceWindow::TraceWindow(const config::ProfilingConfig& config, at::Device device, std::filesystem::path file,
                         TraceInfo rank)
    : config_(config), device_(device), file_(std::move(file)), rank_(std::move(rank)) {}

bool TraceWindow::before_step(int64_t step) {
  if (!config_.trace && !config_.nsight_window) return true;
  const int64_t done = steps_++;
  if (done == config_.trace_after + config_.trace_steps) {
    finish();
    return !config_.nsight_window;
  }
  if (done == config_.trace_after) {
    if (config_.nsight_window) {
      nsight_window_begin(device_);
    } else {
      trace_ = std::make_unique<StepTrace>(device_, trace_options(config_));
    }
    open_ = true;
  }
  if (trace_) trace_->begin_step(step);
  return true;
}

void TraceWindow::finish() {
  if (!std::exchange(open_, false)) return;
  if (!trace_) {
    nsight_window_end(device_);
    return;
  }
  // Viewers of all ranks are given a folder, and read every .json file in it.
  make_directories(file_.parent_path());
  trace_->finish(file_, rank_);
  trace_.reset();
  log::info("traced ", std::min(steps_ - config_.trace_after, config_.trace_steps), " steps: ", file_.string());
}

}  // namespace hrm::train
