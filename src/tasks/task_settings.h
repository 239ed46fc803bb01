#pragma once
// The rows of the built-in tasks. Private to tasks/.

#include "hrm/config/task_settings.h"
#include "tasks/builtin_tasks.h"

namespace hrm::config {

#define HRM_DECLARE_SETTINGS(name) const TaskSettings& name##_settings();
HRM_BUILTIN_TASKS(HRM_DECLARE_SETTINGS)
#undef HRM_DECLARE_SETTINGS

}  // namespace hrm::config
