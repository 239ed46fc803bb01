// The table of tasks, as the configuration sees them. Free of torch.
#include "tasks/task_settings.h"

namespace hrm::config {

const std::vector<const TaskSettings*>& builtin_task_settings() {
#define HRM_SETTINGS_ROW(name) &name##_settings(),
  static const std::vector<const TaskSettings*> rows{HRM_BUILTIN_TASKS(HRM_SETTINGS_ROW)};
#undef HRM_SETTINGS_ROW
  return rows;
}

}  // namespace hrm::config
