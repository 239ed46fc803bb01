#pragma once
// The rows of the built-in tasks. Private to tasks/.

#include "hrm/config/task_settings.h"

namespace hrm::config {

const TaskSettings& puzzle_settings();
const TaskSettings& language_settings();
const TaskSettings& polychromic_settings();

}  // namespace hrm::config
