#pragma once
// The rows of the built-in tasks. Private to tasks/.

#include "hrm/config/check.h"
#include "hrm/config/task_settings.h"
#include "tasks/builtin_tasks.h"

namespace hrm::config {

#define HRM_DECLARE_SETTINGS(name) const TaskSettings& name##_settings();
HRM_BUILTIN_TASKS(HRM_DECLARE_SETTINGS)
#undef HRM_DECLARE_SETTINGS

// Error(usage) if precision.blocks=fp8 stands beside another compute dtype than bf16.
void check_fp8_blocks(const Checker& check);

}  // namespace hrm::config
