#include "hrm/runtime/profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <set>

#include "hrm/base/error.h"
#include "hrm/runtime/device.h"

namespace hrm {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepTrace::StepTrace(at::Device device) : device_(device) {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  // A build with CUDA on a machine without a driver: the profiler library would print an error of its own, and the
  // trace of the CPU is right all the same. A level that the user has set stays.
  if (device.is_cpu()) setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  synchronize(device_);
  profiler::prepareProfiler(config, activities);
  // Global scope: the backward pass runs in autograd's own thread.
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
}

void StepTrace::finish(const std::filesystem::path& file) {
  synchronize(device_);
  const auto result = profiler::disableProfiler();
  require(result != nullptr, ExitCode::unexpected, "the profiler returned no result");
  result->save(file.string());
  require(std::filesystem::exists(file), ExitCode::environment, "cannot write the trace '", file.string(), "'");
}

}  // namespace hrm
