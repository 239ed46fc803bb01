#pragma once
// The steps of a run that are profiled: by LibTorch's profiler into a file (profiling.trace), or by Nsight
// (profiling.nsight_window).

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "hrm/config/config.h"
#include "hrm/runtime/profiler.h"

namespace hrm::train {

class TraceWindow {
 public:
  // `config` must live as long. `file`: where profiling.trace writes to; one of each rank. `rank`: which one it is.
  TraceWindow(const config::ProfilingConfig& config, at::Device device, std::filesystem::path file,
              TraceInfo rank = {});

  // In front of each step: the window opens after profiling.trace_after steps of this process and closes after
  // profiling.trace_steps more. `step`: its number in the run. False when the run shall end with it, as that of Nsight
  // does.
  bool before_step(int64_t step);
  // Closes the window where it is open, and writes the trace. Throws as StepTrace::finish.
  void finish();

 private:
  const config::ProfilingConfig& config_;
  at::Device device_;
  std::filesystem::path file_;
  TraceInfo rank_;
  int64_t steps_ = 0;                 // of this process, with a window alone
  bool open_ = false;                 // by trace_, or by Nsight
  std::unique_ptr<StepTrace> trace_;  // null for Nsight
};

}  // namespace hrm::train
