#pragma once
// How long the phases of a step take, in every step. On a GPU one-thread kernels read its own clock in the current
// stream. They may be captured, and a replay measures anew. Nothing here waits, unless it says so.

#include <ATen/core/Tensor.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hrm/runtime/async_read.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/runtime/phase.h"

namespace hrm {

// Milliseconds by the phase's name, in the order of a step.
using PhaseTimes = std::vector<std::pair<std::string, double>>;

class PhaseClock {
 public:
  explicit PhaseClock(at::Device device);

  // The time since the last mark belongs to no phase.
  void begin();
  // It belongs to `phase`: work of that phase, and waiting for other streams and for the host. What other streams do
  // meanwhile is hidden, and counts nowhere.
  void end(Phase phase);

  // Queues a copy of the sums of all phases to the host.
  void read(int64_t step);
  // Of that read: what each phase has taken since the read that was taken before, or since the start. Empty if there
  // was no read of `step`. Waits for the device only if it has not yet reached the read.
  PhaseTimes take(int64_t step);
  // The same sums since the start. Waits for the device.
  PhaseTimes totals() const;

  // The clock that PhaseRange marks on this thread; null where nothing is measured.
  static PhaseClock* current();
  // Makes a clock, or none, the current one until the end of the scope.
  class Scope {
   public:
    explicit Scope(PhaseClock* clock);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseClock* before_;
  };

 private:
  friend class PhaseRange;
  static constexpr int kNone = -1;

  void mark(int phase);
  PhaseTimes times(const std::vector<double>& ns) const;

  at::Tensor state_;  // int64 nanoseconds: the last mark, then the sum of each phase
  AsyncReader reader_;
  std::bitset<kPhases> used_;
  std::vector<double> taken_;  // sums of the last take()
  int open_ = kNone;           // the innermost PhaseRange
};

// A ProfilerRange of a phase. Its end is the end of the phase for the current clock; of ranges inside each other, time
// belongs to the innermost. The phase begins where the one before it ended, so no time is lost between ranges.
class PhaseRange {
 public:
  explicit PhaseRange(Phase phase, RangeKind kind = RangeKind::step);
  ~PhaseRange();
  PhaseRange(const PhaseRange&) = delete;
  PhaseRange& operator=(const PhaseRange&) = delete;

 private:
  ProfilerRange range_;
  PhaseClock* clock_;
  int phase_, outer_, exceptions_;
};

}  // namespace hrm
