#pragma once
// The steps whose allocations are recorded (profiling.memory).

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>

#include "hrm/config/config.h"

namespace hrm::train {

class MemoryWindow {
 public:
  // The recording itself begins with the device (train/ranks.h), so that it has the weights, too. `file`: one of each
  // rank.
  MemoryWindow(const config::ProfilingConfig& config, at::Device device, std::filesystem::path file);

  // In front of each step. Behind profiling.memory_steps steps it writes the file, logs the table and stops recording.
  void before_step();
  // The same, at the end of a run that is shorter. Throws Error(environment) if the file cannot be written.
  void finish();

 private:
  at::Device device_;
  std::filesystem::path file_;
  int64_t most_, steps_ = 0;
  bool open_;
};

}  // namespace hrm::train
