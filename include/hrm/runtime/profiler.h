#pragma once
// A trace of some steps by LibTorch's own profiler: operations on the CPU, kernels on the GPU.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/formats/trace_file.h"

namespace at {
struct RecordFunction;
}
namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace hrm {

// What a trace records beside names and times. Each costs time on the CPU while it records.
struct TraceOptions {
  bool shapes = false;  // sizes of the inputs of every operation
  bool flops = false;   // FLOPs of matrix products and other known operations; needs shapes and switches them on
  bool memory = false;  // allocations
  bool stacks = false;  // C++ call stacks of the operations, see StepTrace::finish
};
TraceOptions trace_options(const config::ProfilingConfig& config);

// One line of a table: everything of one name, or of one group.
struct ProfileRow {
  std::string name;
  int64_t calls = 0;
  double ms = 0;
};

// Where the time of the recorded steps went. On a GPU the rows are kernels and copies, without time in which an earlier
// one still ran. On the CPU they are operations without their inner operations.
struct StepProfile {
  bool gpu = false;
  double span_ms = 0;  // from the first start to the last end of the rows' events
  double busy_ms = 0;  // of that, with something running; the rest are gaps in which the device waited for the host
  std::vector<ProfileRow> by_name;   // longest first
  std::vector<ProfileRow> by_group;  // the same time by what the kernels are for (hrm/runtime/kernel_groups.h)
  int64_t launches = 0;              // calls that start a kernel or copy, one for each replay of a graph
  std::vector<ProfileRow> waits;     // calls in which the host waited for the device
};

// The name of a kernel without what only a compiler needs: namespaces of ours and of ATen, result type.
std::string short_kernel_name(std::string name);

// Records from construction to finish() or profile(). Slows the recorded steps on the CPU side; free when not
// constructed. One at a time in a process.
class StepTrace {
 public:
  explicit StepTrace(at::Device device, const TraceOptions& options = {});
  ~StepTrace();  // stops the recording, and drops it
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // A step begins, the one before it ends: the annotation "ProfilerStep#NUMBER", by which other tools find the steps.
  void begin_step(int64_t number);

  // Waits for the device and writes a trace for Perfetto, chrome://tracing and HTA (hrm/formats/trace_file.h), packed
  // where the name ends in ".gz". `info`: which rank it is. The bytes that the allocator and the process hold at the
  // edges of ranges are added as counters. With stacks it also writes a text file, "trace.json.gz" ->
  // "trace_stacks.txt": one line per call stack, outermost frame first, frames separated by ';', then a blank and the
  // CPU microseconds spent in it, as flame-graph tools read them. Throws Error(environment) on failure.
  void finish(const std::filesystem::path& file, TraceInfo info = {});

  // Waits for the device and returns the sums, without a file.
  StepProfile profile();

 private:
  struct Stacks;
  void sample_memory();
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();

  at::Device device_;
  bool recording_ = false;
  std::unique_ptr<at::RecordFunction> step_;
  std::vector<TraceCounter> counters_;
  std::unique_ptr<Stacks> stacks_;
};

// The steps that Nsight records: it starts and stops with `--capture-range=cudaProfilerApi` (nsys) or
// `--profile-from-start off` (ncu). Nothing happens without Nsight around, nor in a build without CUDA.
void nsight_window_begin(at::Device device);
void nsight_window_end(at::Device device);

}  // namespace hrm
