#pragma once
// How long the phases of a step take. On a GPU its own clock measures them in the stream, so captured steps are
// measured, too.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "hrm/runtime/async_read.h"

namespace hrm {

class PhaseClock {
 public:
  PhaseClock(at::Device device, int64_t phases);

  // The time since the last mark belongs to none.
  void begin();
  // It belongs to `phase`, from 0. Both are one small kernel in the current stream, and may be captured; a replay
  // measures anew.
  void end(int64_t phase);

  // Behind each step: what the phases have taken so far is on its way to the host.
  void step();
  // Milliseconds of a step of each phase, a mean over the steps since the last call that have reached the host; empty
  // if none has. Does not wait.
  std::vector<double> take();

 private:
  void mark(int64_t phase);

  at::Tensor state_;  // int64 nanoseconds: the last mark, then the sum of each phase
  AsyncReader reader_;
  int64_t steps_ = 0;
  AsyncReader::Entry taken_, newest_;  // sums and their step
};

}  // namespace hrm
