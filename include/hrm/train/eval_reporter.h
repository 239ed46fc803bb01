#pragma once
// How far an evaluation is: a line rewritten in place on a terminal, a plain line every half minute elsewhere.

#include "hrm/tasks/task.h"

namespace hrm::train {

// Seconds of a clock that never goes back.
double now_seconds();

class EvalReporter {
 public:
  EvalReporter();
  void report(const tasks::EvalProgress& progress);
  double seconds() const { return now_seconds() - start_; }

 private:
  double start_, last_line_;
};

}  // namespace hrm::train
