#pragma once
// What the files of the trainer share.

#include <cstddef>
#include <cstdint>

#include "hrm/parallel/mesh.h"

namespace hrm::train {

// Values behind the task's own sums in the vector that travels to the host each step; the first three as
// optim::GradNormExtras reports them. The last one only where the loss is scaled.
enum Extra : int64_t {
  kNormRaw = 0,
  kNormClipped = 1,
  kSkipped = 2,  // the update was left out
  kUpdateRatio = 3,
  kNonFinite = 4,  // because the gradient was not finite
  kSpike = 5,      // because the loss was a spike
  kGiveUp = 6,     // and all that follow will be
  kLossScale = 7,
};
inline constexpr int64_t kExtras = 7, kExtrasScaled = 8;

// Values before the task's sums. Behind kWaited, of several ranks, the waits of each axis of the mesh (parallel::Axis),
// then each rank's own time in the step before.
enum FrontValue : int64_t {
  kStop = 0,    // how many ranks want to stop, and kPartWritten for each whose part of a checkpoint is on the disk
  kWaited = 1,  // ms that the ranks waited for each other in the step before, in all; only of several
  kWaitedOn = 2,
  kOwn = kWaitedOn + parallel::kAxes,
};
inline constexpr int64_t kPartWritten = int64_t{1} << 24;  // more than there are ranks

// With several ranks the host reads a step's values this many steps later, never sooner, so all ranks draw the same
// conclusions from them (to stop, to give up) after the same step.
inline constexpr size_t kAgreementLag = 2;  // less than queued_at_ has room for

inline constexpr double kPatienceAtEnd = 30, kPatienceAtStop = 15;  // s, for a last checkpoint that cannot be written

}  // namespace hrm::train
