#pragma once

#include "parity/cases.h"

namespace hrm::parity {

// What the official reader yields for the folders of a case.
void check_dataset(const Case& loaded);

}  // namespace hrm::parity
