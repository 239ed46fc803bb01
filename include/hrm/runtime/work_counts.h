#pragma once
// How much work a piece of code hands out, as counts that no clock changes: what a gate against regressions compares.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace hrm {

struct WorkCounts {
  int64_t calls = 0;        // operations that the dispatcher was asked for, the inner ones too
  int64_t allocations = 0;  // of memory on the device
  int64_t bytes = 0;        // of these allocations, all together; on a GPU of the blocks that the allocator gave
  int64_t peak_bytes = 0;   // most bytes at a time, above those at the start
};

// Counts what this thread does from construction to destruction, and the backward passes that it starts. Other threads,
// such as those that prepare data, do not count. A replayed graph counts as nothing. Slows operations down. Not
// together with a StepTrace.
class WorkCounter {
 public:
  explicit WorkCounter(at::Device device);
  ~WorkCounter();
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  WorkCounts counts() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  uint64_t callback_;
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace hrm
