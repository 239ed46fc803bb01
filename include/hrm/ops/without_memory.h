#pragma once
// Passes of a model on tensors of the meta device, which have sizes but no values.

#include "hrm/ops/backend.h"

namespace hrm::ops {

// While one exists, ops of the `hrm` namespace accept tensors of the meta device. They run the reference formulas,
// whose results have the sizes and dtypes that training gives. For the whole process, so not while others compute: sets
// the backend to `reference`, and the destructor sets the previous one. An op that reads values throws c10::Error.
class WithoutMemory {
 public:
  WithoutMemory();
  ~WithoutMemory();
  WithoutMemory(const WithoutMemory&) = delete;
  WithoutMemory& operator=(const WithoutMemory&) = delete;

 private:
  Backend before_;
};

}  // namespace hrm::ops
