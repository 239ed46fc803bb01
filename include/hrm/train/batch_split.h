#pragma once
// How a global batch falls to ranks and micro-batches.

#include <cstdint>

#include "hrm/config/config.h"

namespace hrm::train {

struct BatchSplit {
  int64_t own = 0;           // samples of each rank
  int64_t micro = 0;         // of them in one forward and backward pass
  int64_t accumulation = 1;  // passes of a step
};

// Error(usage) where anything would be left over.
BatchSplit split_batch(const config::TrainConfig& config, int64_t ranks);

}  // namespace hrm::train
