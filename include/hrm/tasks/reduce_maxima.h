#pragma once
// How ranks agree on the scales of fp8 tensors: each step, by one small exchange.

#include <ATen/core/Tensor.h>

#include "hrm/parallel/comm.h"

namespace hrm::tasks {

// The largest of all ranks, in place. `maxima`: (n) float32, of any stride. Device work; throws as Comm.
void reduce_maxima(parallel::Comm& comm, const at::Tensor& maxima);

}  // namespace hrm::tasks
