#pragma once
// The rows of the built-in tasks. Private to tasks/.

#include "hrm/tasks/registry.h"
#include "tasks/builtin_tasks.h"

namespace hrm::tasks {

#define HRM_DECLARE_SPEC(name) const TaskSpec& name##_spec();
HRM_BUILTIN_TASKS(HRM_DECLARE_SPEC)
#undef HRM_DECLARE_SPEC

}  // namespace hrm::tasks
