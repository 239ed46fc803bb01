#pragma once
// Checks of values against each other. Private to config/.

#include "hrm/config/load.h"

namespace hrm::config {

// Throws Error(usage) for values that contradict each other: each such configuration would fail later, or silently do
// something else than it says.
void check_consistency(const LoadedConfig& loaded);

// Whether the key is one that `task` does not read.
bool belongs_to_another_task(const std::string& key, const std::string& task);

}  // namespace hrm::config
