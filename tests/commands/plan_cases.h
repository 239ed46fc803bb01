#pragma once
// What the tests of `plan` share.

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands/plan/plan.h"
#include "tasks/language/plan.h"
#include "tasks/puzzle/plan.h"

namespace hrm::testing {

// A GPU of the table; a failure where the table has none of that name.
inline commands::GpuFacts gpu(const std::string& name) {
  for (const commands::GpuFacts& known : commands::known_gpus()) {
    if (known.name == name) return known;
  }
  ADD_FAILURE() << name;
  return {};
}

// Bytes in tensors of the CPU, as its allocator tells a profiler.
class HostBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, peak = 0;
};

// The value of an item, 0 where the plan has none of that name.
inline double item(const std::vector<commands::PlanItem>& items, const std::string& name) {
  for (const commands::PlanItem& i : items) {
    if (i.name == name) return i.value;
  }
  return 0;
}

inline commands::PlanInput make_plan_input(const config::Config& config, const models::PuzzleModelDims& dims,
                                           const commands::GpuFacts& gpu) {
  return commands::make_plan_input(config, std::make_shared<tasks::PuzzlePlan>(config.model.arch, dims), gpu);
}

inline commands::PlanInput make_plan_input(const config::Config& config, const models::LanguageSizes& sizes,
                                           const commands::GpuFacts& gpu) {
  return commands::make_plan_input(config, std::make_shared<tasks::LanguagePlan>(config.lm, sizes), gpu);
}

inline const models::PuzzleModelDims& dims_of(const commands::PlanInput& in) {
  return dynamic_cast<const tasks::PuzzlePlan&>(*in.model).dims();
}

}  // namespace hrm::testing
