#pragma once
// Process start-up before the first op.

#include "hrm/config/config.h"
#include "hrm/runtime/device.h"

namespace hrm::ops {

// Runs start_runtime, then sets the backends of the ops, the tuning of matrix products and the NVTX ranges from the
// configuration. `processes_here`: the number of ranks on this machine, which share its cores. Throws like
// start_runtime.
Runtime start_runtime_and_ops(const config::Config& config, int processes_here = 1);

}  // namespace hrm::ops
