#pragma once
// What a process does once before its first op.

#include "hrm/config/config.h"
#include "hrm/runtime/device.h"

namespace hrm::ops {

// Runs start_runtime, then sets the backends of the ops, the tuning of matrix products and the NVTX ranges as the
// configuration says. `processes_here`: ranks on this machine, which share its cores. Errors as start_runtime.
Runtime start_runtime_and_ops(const config::Config& config, int processes_here = 1);

}  // namespace hrm::ops
