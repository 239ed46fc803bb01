#pragma once
// The simulation of one training step of one rank: what it computes, what it sends, and how long it waits.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hrm/tasks/plan.h"

namespace hrm::commands {

// What one rank computes, milliseconds of each micro-batch.
struct PassTimes {
  double forward_ms = 0, backward_ms = 0;
  int64_t micro_batches = 1;  // also those that are not listed (StepExchange::times)
  double rate_beside = 1;     // of computing while something travels, above 0
};

// All operations of one axis.
struct AxisTimes {
  int64_t calls = 0, bytes = 0;
  double ms = 0;
  double exposed_ms = 0;  // while the rank waits and computes nothing
};

struct StepTimeline {
  std::vector<double> exchange_ms;        // of each exchange, once
  std::map<std::string, AxisTimes> axes;  // by CommOperation::axis
  double comm_ms = 0;                     // of all axes
  double exposed_ms = 0;
  double slowed_ms = 0;  // what computing takes longer because something travels beside it
};

// Events in their order: the rank computes up to the place of each, then starts the operation or waits for it. Those of
// the tensor axis travel first, as their kernels do (parallel::Priority::urgent), and all others stop meanwhile. Others
// travel one after the other. `milliseconds`: of an operation that has the links to itself. Micro-batches that are
// not listed wait as long as the one that stands for them.
StepTimeline simulate(const std::vector<tasks::StepExchange>& exchanges, const PassTimes& times,
                      const std::function<double(const parallel::CommOperation&)>& milliseconds);

}  // namespace hrm::commands
