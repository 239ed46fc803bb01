// The table of tasks, as the configuration sees them. Free of torch.
#include "tasks/task_settings.h"

namespace hrm::config {

const std::vector<const TaskSettings*>& builtin_task_settings() {
  static const std::vector<const TaskSettings*> rows{&puzzle_settings(), &language_settings(), &polychromic_settings()};
  return rows;
}

}  // namespace hrm::config
