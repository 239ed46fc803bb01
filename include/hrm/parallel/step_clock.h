#pragma once
// How long a rank works in a step and how long it waits for others. On a GPU its own clock measures it in the stream,
// so captured steps are measured, too.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::parallel {

class StepClock {
 public:
  static constexpr int kNoAxis = -1;
  // A clock, and the axis (0 to axes - 1) that waits belong to.
  struct Of {
    StepClock* clock = nullptr;
    int axis = kNoAxis;
  };

  explicit StepClock(at::Device device, int axes = 0);

  // A step begins. Writes the time of the previous step without its waits into `own_ms` (0-dim), and its waits into
  // `waited_ms` (1 + n, or 0-dim): in all, and of the first n axes. Both float64 on the device. The time lasts from its
  // beginning to now, so a late host counts as work. The first step writes zeros. On a GPU ordered in the current
  // stream, as everything here. Throws Error(unexpected) for more axes than there are.
  void begin_step(const at::Tensor& own_ms, const at::Tensor& waited_ms);

  // While one lives, the rank waits for others. Not one within another. A null clock measures nothing.
  class Wait {
   public:
    explicit Wait(StepClock* clock) : Wait(Of{clock, kNoAxis}) {}
    explicit Wait(const Of& of) : of_(of) {
      if (of_.clock) of_.clock->wait(true, of_.axis);
    }
    ~Wait() {
      if (of_.clock) of_.clock->wait(false, of_.axis);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Of of_;
  };

 private:
  void wait(bool begins, int axis);

  // int64, ns: when the step began (0: none has), then the sum of its waits and, within one, less its begin; then the
  // same of each axis.
  at::Tensor state_;
};

}  // namespace hrm::parallel
