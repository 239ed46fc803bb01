#pragma once
// Counts the bytes of the tensors that a thread has on the CPU.

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace hrm::test {

// What the thread that made it allocates, less what it frees, from then on.
class LiveBytes {
 public:
  LiveBytes() : guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

  int64_t now() const { return count_->now; }
  // The most at any time since the last begin().
  int64_t peak() const { return count_->peak; }
  void begin() { count_->peak = count_->now; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      now += size;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_;
};

}  // namespace hrm::test
