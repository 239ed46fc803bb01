#include "hrm/runtime/nvtx.h"

#include <ATen/record_function.h>

#include <mutex>
#include <utility>

#include "hrm/base/log.h"
#include "hrm/build_config.h"
#include "hrm/runtime/memory_history.h"

#if HRM_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace hrm {
namespace ranges {
namespace {

constexpr unsigned kAll = static_cast<unsigned>(RangeKind::step) | static_cast<unsigned>(RangeKind::data) |
                          static_cast<unsigned>(RangeKind::eval) | static_cast<unsigned>(RangeKind::sample);

// What a trace does at the edges of ranges. Ranges that end while a trace stops may still call it.
std::mutex edge_mutex;
std::function<void()> trace_edge;

void call_edge() {
  const std::lock_guard lock(edge_mutex);
  if (trace_edge) trace_edge();
}

void set(unsigned bits, unsigned mask) {
  unsigned old = active.load();
  while (!active.compare_exchange_weak(old, (old & ~mask) | bits)) {
  }
}

}  // namespace

void push(unsigned listeners, const char* name, void** annotation) {
#if HRM_WITH_CUDA
  if (listeners & (kAll << kNvtxShift)) nvtxRangePushA(name);
#endif
  if (listeners & (kAll << kTraceShift)) {
    auto record = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (record->isActive()) record->before(name);
    call_edge();
    *annotation = record.release();
  }
  if (listeners & (kAll << kMemoryShift)) enter_memory_phase(name);
}

void pop(unsigned listeners, void* annotation) {
  if (listeners & (kAll << kMemoryShift)) leave_memory_phase();
  if (listeners & (kAll << kTraceShift)) call_edge();
  delete static_cast<at::RecordFunction*>(annotation);
#if HRM_WITH_CUDA
  if (listeners & (kAll << kNvtxShift)) nvtxRangePop();
#endif
}

}  // namespace ranges

void enable_nvtx(const config::ProfilingConfig& config) {
  unsigned bits = 0;
  if (config.nvtx_enabled) {
    bits = static_cast<unsigned>(RangeKind::step) | static_cast<unsigned>(RangeKind::sample);
    if (config.nvtx_include_data) bits |= static_cast<unsigned>(RangeKind::data);
    if (config.nvtx_include_eval) bits |= static_cast<unsigned>(RangeKind::eval);
#if !HRM_WITH_CUDA
    log::info("profiling.nvtx.enabled: this program was built without CUDA, so there are no NVTX ranges");
    bits = 0;
#endif
  }
  ranges::set(bits << ranges::kNvtxShift, ranges::kAll << ranges::kNvtxShift);
}

void annotate_trace(bool on, std::function<void()> at_edge) {
  {
    const std::lock_guard lock(ranges::edge_mutex);
    ranges::trace_edge = std::move(at_edge);
  }
  ranges::set(on ? ranges::kAll << ranges::kTraceShift : 0, ranges::kAll << ranges::kTraceShift);
}

void track_memory_phases(bool on) {
  ranges::set(on ? ranges::kAll << ranges::kMemoryShift : 0, ranges::kAll << ranges::kMemoryShift);
}

}  // namespace hrm
