#pragma once
// How long a rank works in a step and how long it waits for others. On a GPU its own clock measures it in the stream,
// so captured steps are measured, too.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::parallel {

class StepClock {
 public:
  explicit StepClock(at::Device device);

  // A step begins. Writes the time of the previous step without its waits into `own_ms`, and its waits into `waited_ms`
  // (0-dim float64 on the device, both). The time lasts from its beginning to now, so a late host counts as work. The
  // first step writes zeros. On a GPU ordered in the current stream, as everything here.
  void begin_step(const at::Tensor& own_ms, const at::Tensor& waited_ms);

  // While one lives, the rank waits for others. Not one within another. A null clock measures nothing.
  class Wait {
   public:
    explicit Wait(StepClock* clock) : clock_(clock) {
      if (clock_) clock_->wait(true);
    }
    ~Wait() {
      if (clock_) clock_->wait(false);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    StepClock* clock_;
  };

 private:
  void wait(bool begins);

  at::Tensor state_;  // int64: when the step began (0: none has), sum of its waits and, within one, less its begin; ns
};

}  // namespace hrm::parallel
