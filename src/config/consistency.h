#pragma once
// Checks of values against each other. Private to config/.

#include "hrm/config/load.h"

namespace hrm::config {

// Throws Error(usage) for values that contradict each other: each such configuration would fail later, or silently do
// something else than it says.
void check_consistency(const LoadedConfig& loaded);

}  // namespace hrm::config
