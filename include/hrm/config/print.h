#pragma once
// The configuration for people.

#include <string>

#include "hrm/config/load.h"

namespace hrm::config {

// Every key with its type, range, unit, default and help, by section.
std::string describe_fields();

// Every value with its origin, one per line: `model.arch = "hrm"    configs/a.json:12`.
std::string values_with_origins(const LoadedConfig& loaded);

}  // namespace hrm::config
