#pragma once
// A trace of some steps by LibTorch's own profiler: operations on the CPU, kernels on the GPU.

#include <c10/core/Device.h>

#include <filesystem>

namespace hrm {

// Records from construction to finish(). Slows the recorded steps on the CPU side; free when not constructed.
class StepTrace {
 public:
  explicit StepTrace(at::Device device);
  // Waits for the device and writes a Chrome trace (chrome://tracing, Perfetto). Error(environment) when it cannot.
  void finish(const std::filesystem::path& file);

 private:
  at::Device device_;
};

}  // namespace hrm
