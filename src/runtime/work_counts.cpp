#include "hrm/runtime/work_counts.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace hrm {

// The place of the profiler's own reporter, which both allocators ask. It is handed on to the threads of a backward
// pass, as the callback is.
struct WorkCounter::State : c10::MemoryReportingInfoBase {
  explicit State(at::Device counted) : device(counted) {}

  void reportMemoryUsage(void* /*block*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                         at::Device where) override {
    if (where.type() != device.type()) return;
    const int64_t now = held.fetch_add(size) + size;
    if (size <= 0) return;
    allocations.fetch_add(1);
    bytes.fetch_add(size);
    int64_t most = peak.load();
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  const at::Device device;
  std::atomic<int64_t> calls{0}, allocations{0}, bytes{0}, held{0}, peak{0};
};

struct WorkCounter::Guard {
  explicit Guard(std::shared_ptr<State> state) : info(c10::DebugInfoKind::PROFILER_STATE, std::move(state)) {}
  c10::DebugInfoGuard info;
};

namespace {

// Of the one counter at a time: callbacks of LibTorch are plain functions.
std::atomic<std::atomic<int64_t>*> counted_calls{nullptr};

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction& /*call*/) {
  if (auto* calls = counted_calls.load()) calls->fetch_add(1);
  return nullptr;
}

}  // namespace

WorkCounter::WorkCounter(at::Device device) : state_(std::make_shared<State>(device)) {
  counted_calls.store(&state_->calls);
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&count_call).scopes({at::RecordScope::FUNCTION}));
  guard_ = std::make_unique<Guard>(state_);
}

WorkCounter::~WorkCounter() {
  guard_.reset();
  at::removeCallback(callback_);
  counted_calls.store(nullptr);
}

WorkCounts WorkCounter::counts() const {
  return {state_->calls.load(), state_->allocations.load(), state_->bytes.load(), state_->peak.load()};
}

}  // namespace hrm
