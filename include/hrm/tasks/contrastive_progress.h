#pragma once
// How a free phase settles over its relaxation steps, logged while training goes on.
//
// A phase of a training step is one kernel, which shows only its end. So the free phase of some rows is run a second
// time, in parts, outside of the captured step. Its numbers leave the device by an AsyncReader. Nothing waits for them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "hrm/models/geometric_memory.h"
#include "hrm/runtime/async_read.h"

namespace hrm::tasks {

class RelaxationProgress {
 public:
  static constexpr int64_t kRows = 128;  // at most, of a batch
  static constexpr int64_t kParts = 8;   // at most, of a phase

  // Queues the free phase of the first rows of a batch, inputs (B, f) and targets (B) int64, on the current stream.
  // With momentum, velocities begin at zero in each part.
  void measure(int64_t step, const models::GeometricMemory& memory, const models::GeometricMemory::Window& window,
               const at::Tensor& inputs, const at::Tensor& targets, int64_t steps);

  // A line for each measured phase that the device has finished since the last call. It gives the number of steps so
  // far, the loss, the mean action of a step and the largest move of the last step.
  std::vector<std::string> take();

 private:
  AsyncReader reader_;
  std::deque<std::vector<int64_t>> ends_;  // of the parts of each queued phase
};

}  // namespace hrm::tasks
