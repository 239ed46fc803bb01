#pragma once
// What the tests of `plan` share.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "commands/plan/plan.h"

namespace hrm::testing {

// A GPU of the table; a failure where the table has none of that name.
inline commands::GpuFacts gpu(const std::string& name) {
  for (const commands::GpuFacts& known : commands::known_gpus()) {
    if (known.name == name) return known;
  }
  ADD_FAILURE() << name;
  return {};
}

// The value of an item, 0 where the plan has none of that name.
inline double item(const std::vector<commands::PlanItem>& items, const std::string& name) {
  for (const commands::PlanItem& i : items) {
    if (i.name == name) return i.value;
  }
  return 0;
}

}  // namespace hrm::testing
