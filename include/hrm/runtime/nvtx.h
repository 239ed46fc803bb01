#pragma once
// Named ranges of a step for profilers: NVTX ranges on the timeline of Nsight Systems, and annotations in a StepTrace.
//
// Names in use: train.step, data.next_batch, train.graph_replay, and those of the phases (hrm/runtime/phase.h). Inside
// a captured step the host runs nothing but train.graph_replay.

#include <atomic>
#include <functional>

#include "hrm/config/config.h"

namespace hrm {

// What a range belongs to. `step` and `sample` (sampling of completions) are switched on by profiling.nvtx.enabled, the
// others by their own keys.
enum class RangeKind : unsigned { step = 1, data = 2, eval = 4, sample = 8 };

namespace ranges {

inline constexpr unsigned kNvtxShift = 0, kTraceShift = 8, kMemoryShift = 16;

// One bit per kind for NVTX, for the trace that is being recorded, and for the history of memory. Process-wide.
inline std::atomic<unsigned> active{0};

void push(unsigned listeners, const char* name, void** annotation);
void pop(unsigned listeners, void* annotation);

}  // namespace ranges

// Applies profiling.nvtx. In a build without CUDA there is nobody to listen: says so once when it is asked for.
void enable_nvtx(const config::ProfilingConfig& config);

// While a StepTrace records: all kinds of ranges become annotations in it, and `at_edge` is called where one begins or
// ends, in the range's thread.
void annotate_trace(bool on, std::function<void()> at_edge = {});

// While allocations are recorded (hrm/runtime/memory_history.h): all kinds of ranges become their phases.
void track_memory_phases(bool on);

// The range from construction to destruction on this thread. `name` must be a literal. Free when nobody listens: one
// load and one branch.
class ProfilerRange {
 public:
  explicit ProfilerRange(RangeKind kind, const char* name) {
    const unsigned bits = static_cast<unsigned>(kind);
    listeners_ = ranges::active.load(std::memory_order_relaxed) &
                 (bits << ranges::kNvtxShift | bits << ranges::kTraceShift | bits << ranges::kMemoryShift);
    if (listeners_ != 0) [[unlikely]]
      ranges::push(listeners_, name, &annotation_);
  }
  ~ProfilerRange() {
    if (listeners_ != 0) [[unlikely]]
      ranges::pop(listeners_, annotation_);
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  unsigned listeners_ = 0;
  void* annotation_ = nullptr;
};

}  // namespace hrm
