#pragma once
// The rows of the built-in tasks. Private to tasks/.

#include "hrm/tasks/registry.h"

namespace hrm::tasks {

const TaskSpec& puzzle_spec();
const TaskSpec& language_spec();
const TaskSpec& polychromic_spec();

}  // namespace hrm::tasks
