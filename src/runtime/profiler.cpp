#include "hrm/runtime/profiler.h"

#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/build_config.h"
#include "hrm/runtime/device.h"
#include "hrm/runtime/kernel_groups.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/nvtx.h"
#include "op_stacks.h"
#include "trace_phases.h"

#if HRM_WITH_CUDA
#include <cuda_profiler_api.h>
#endif

namespace hrm {
namespace {

namespace profiler = torch::autograd::profiler;
using Event = profiler::KinetoEvent;
using Kind = libkineto::ActivityType;
using torch::profiler::impl::ActivityType;

// Marks where the recorded steps end, so that the waiting of the recording itself is not counted as theirs.
constexpr const char* kEnd = "end of the recorded steps";

Kind kind_of(const Event& event) {
  return static_cast<Kind>(event.activityType());
}

bool is_gpu_work(const Event& event) {
  return kind_of(event) == Kind::CONCURRENT_KERNEL || kind_of(event) == Kind::GPU_MEMCPY ||
         kind_of(event) == Kind::GPU_MEMSET;
}

bool is_host_call(const Event& event) {
  return kind_of(event) == Kind::CUDA_RUNTIME || kind_of(event) == Kind::CUDA_DRIVER;
}

bool starts_with_any(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return name.starts_with(prefix); });
}

// Sums of calls and times by a name.
class Sums {
 public:
  void add(const std::string& name, double ns) {
    ProfileRow& row = rows_[name];
    ++row.calls;
    row.ms += ns * 1e-6;
  }
  std::vector<ProfileRow> sorted() {
    std::vector<ProfileRow> out;
    for (auto& [name, row] : rows_) {
      row.name = name;
      out.push_back(row);
    }
    std::stable_sort(out.begin(), out.end(), [](const ProfileRow& a, const ProfileRow& b) { return a.ms > b.ms; });
    return out;
  }

 private:
  std::map<std::string, ProfileRow> rows_;
};

struct Interval {
  uint64_t start, end;
};

// Length of the union, in ns.
uint64_t covered(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  uint64_t total = 0, end = 0;
  for (const Interval& next : intervals) {
    if (next.end <= end) continue;
    total += next.end - std::max(next.start, end);
    end = next.end;
  }
  return total;
}

// Calls `give(event, ns)` with the time in which each kernel or copy ran and none that started before it did. A kernel
// may be started early, to wait on the device for the one before it; that time belongs to the one before it.
void times_without_overlap(std::vector<const Event*>& work, const std::function<void(const Event&, double)>& give) {
  std::sort(work.begin(), work.end(), [](const Event* a, const Event* b) {
    return a->startNs() != b->startNs() ? a->startNs() < b->startNs() : a->endNs() < b->endNs();
  });
  uint64_t end = 0;
  for (const Event* event : work) {
    const uint64_t start = std::max(event->startNs(), end);
    give(*event, event->endNs() > start ? static_cast<double>(event->endNs() - start) : 0);
    end = std::max(end, event->endNs());
  }
}

// Calls `give(event, ns)` with the time of each operation that its inner operations did not take.
void self_times(std::vector<const Event*>& thread, const std::function<void(const Event&, double)>& give) {
  std::sort(thread.begin(), thread.end(), [](const Event* a, const Event* b) {
    return a->startNs() != b->startNs() ? a->startNs() < b->startNs() : a->durationNs() > b->durationNs();
  });
  struct Open {
    const Event* event;
    uint64_t inner;
  };
  std::vector<Open> open;
  const auto close = [&] {
    const auto [event, inner] = open.back();
    open.pop_back();
    give(*event, static_cast<double>(event->durationNs() - std::min(inner, event->durationNs())));
  };
  for (const Event* event : thread) {
    while (!open.empty() && open.back().event->endNs() <= event->startNs()) close();
    if (!open.empty()) open.back().inner += event->durationNs();
    open.push_back({event, 0});
  }
  while (!open.empty()) close();
}

StepProfile summarize(const std::vector<Event>& events) {
  StepProfile profile;
  profile.gpu = std::any_of(events.begin(), events.end(), is_gpu_work);
  const auto end_mark = std::find_if(events.begin(), events.end(), [](const Event& e) { return e.name() == kEnd; });
  const uint64_t end = end_mark == events.end() ? UINT64_MAX : end_mark->startNs();

  Sums names, groups, waits;
  std::vector<Interval> intervals;
  std::vector<const Event*> work;
  std::unordered_map<uint64_t, std::vector<const Event*>> threads;
  for (const Event& event : events) {
    if (is_host_call(event) && event.startNs() < end) {
      const std::string name = event.name();
      profile.launches +=
          starts_with_any(name, {"cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset"});
      if (name.find("Synchronize") != std::string::npos || name == "cudaMemcpy") {
        waits.add(name, static_cast<double>(event.durationNs()));
      }
    }
    const bool on_cpu = !profile.gpu && kind_of(event) == Kind::CPU_OP;
    if (!is_gpu_work(event) && !on_cpu) continue;
    intervals.push_back({event.startNs(), event.endNs()});
    (on_cpu ? threads[event.startThreadId()] : work).push_back(&event);
  }
  const auto count = [&](const Event& event, double ns) {
    names.add(event.name(), ns);
    groups.add(kernel_group(event.name()), ns);
  };
  times_without_overlap(work, count);
  for (auto& [id, thread] : threads) self_times(thread, count);
  profile.by_name = names.sorted();
  profile.by_group = groups.sorted();
  profile.waits = waits.sorted();
  if (!intervals.empty()) {
    profile.busy_ms = static_cast<double>(covered(intervals)) * 1e-6;  // sorts by start
    uint64_t last = 0;
    for (const Interval& interval : intervals) last = std::max(last, interval.end);
    profile.span_ms = static_cast<double>(last - intervals.front().start) * 1e-6;
  }
  return profile;
}

void add_phase_ranges(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return;  // it could not be written: finish() says so
  const std::string recorded = read_text(file, ExitCode::environment);
  const std::string trace = with_phase_ranges(recorded);
  if (trace.size() != recorded.size()) write_text_atomic(file, trace);
}

}  // namespace

struct StepTrace::Stacks : OpStacks {};

TraceOptions trace_options(const config::ProfilingConfig& config) {
  return {config.trace_shapes, config.trace_flops, config.trace_memory, config.trace_stacks};
}

std::string short_kernel_name(std::string name) {
  for (const std::string_view part : {"void ", "(anonymous namespace)::", "hrm::ops::cuda::", "at::native::"}) {
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  }
  return name;
}

StepTrace::StepTrace(at::Device device, const TraceOptions& options) : device_(device) {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO,
                                        /*report_input_shapes=*/options.shapes || options.flops, options.memory,
                                        /*with_stack=*/false, options.flops);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  // A build with CUDA on a machine without a driver: the profiler library would print its own error, although the CPU's
  // trace is right. A level that the user has set stays.
  if (device.is_cpu()) setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  synchronize(device_);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  recording_ = true;
  annotate_trace(true, [this] { sample_memory(); });
  if (options.stacks) stacks_ = std::make_unique<Stacks>();
}

StepTrace::~StepTrace() {
  if (!recording_) return;
  annotate_trace(false);
  step_.reset();
  profiler::disableProfiler();
}

void StepTrace::begin_step(int64_t number) {
  step_.reset();  // ends before the next one begins
  step_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (step_->isActive()) step_->before(cat("ProfilerStep#", number));
}

// A few microseconds: the allocator and /proc are asked, the device is not.
void StepTrace::sample_memory() {
  const int64_t now = c10::getTime();
  if (device_.is_cuda()) {
    const MemoryReport report = memory_report(device_, /*whole_device=*/false);
    counters_.push_back({cat("memory of GPU ", int{device_.index()}),
                         now,
                         {{"allocated", report.allocated}, {"reserved", report.reserved}}});
  }
  counters_.push_back({"memory of the process", now, {{"resident", resident_bytes()}}});
}

std::unique_ptr<profiler::ProfilerResult> StepTrace::stop() {
  annotate_trace(false);
  step_.reset();
  {
    RECORD_USER_SCOPE(kEnd);
    synchronize(device_);
  }
  recording_ = false;
  auto result = profiler::disableProfiler();
  require(result != nullptr, ExitCode::unexpected, "the profiler returned no result");
  return result;
}

void StepTrace::finish(const std::filesystem::path& file, TraceInfo info) {
  const auto result = stop();
  info.counters = std::move(counters_);
  info.process = getpid();
  // Beside it at first: an older trace stays until there is a new one, and does not pass for it.
  const std::filesystem::path folder = file.parent_path(), name = file.filename();
  const std::filesystem::path raw = folder / (".tmp-raw-" + name.stem().string());
  const std::filesystem::path temporary = folder / (".tmp-" + name.string());
  std::error_code ignored;
  try {
    result->save(raw.string());
    require(std::filesystem::exists(raw), ExitCode::environment, "no file can be made in its folder");
    if (device_.is_cuda()) add_phase_ranges(raw);
    std::filesystem::remove(temporary, ignored);
    write_trace_file(raw, temporary, info);
    rename_path(temporary, file);
  } catch (const Error& e) {
    for (const auto& left : {raw, temporary}) std::filesystem::remove(left, ignored);
    fail(e.code(), "cannot write the trace '", file.string(), "': ", e.what());
  }
  std::filesystem::remove(raw, ignored);
  if (stacks_) stacks_->finish(folder / (name.string().substr(0, name.string().find('.')) + "_stacks.txt"));
}

StepProfile StepTrace::profile() {
  return summarize(stop()->events());
}

void nsight_window_begin(at::Device device) {
#if HRM_WITH_CUDA
  if (!device.is_cuda()) return;
  synchronize(device);
  cudaProfilerStart();
#else
  (void)device;
#endif
}

void nsight_window_end(at::Device device) {
#if HRM_WITH_CUDA
  if (!device.is_cuda()) return;
  synchronize(device);
  cudaProfilerStop();
#else
  (void)device;
#endif
}

}  // namespace hrm
