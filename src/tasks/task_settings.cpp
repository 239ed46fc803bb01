// The table of tasks, as the configuration sees them. Free of torch.
#include "tasks/task_settings.h"

namespace hrm::config {

const std::vector<const TaskSettings*>& builtin_task_settings() {
#define HRM_SETTINGS_ROW(name) &name##_settings(),
  static const std::vector<const TaskSettings*> rows{HRM_BUILTIN_TASKS(HRM_SETTINGS_ROW)};
#undef HRM_SETTINGS_ROW
  return rows;
}

void check_fp8_blocks(const Checker& check) {
  const PrecisionConfig& p = check.loaded().config.precision;
  const bool fits = p.blocks != BlockPrecision::fp8 || p.compute == ComputePrecision::automatic ||
                    p.compute == ComputePrecision::bf16;
  check.require(fits, check.at("precision.blocks"), " stands beside bf16 alone, and not beside ",
                check.at("precision.compute"), "; set precision.compute to bf16, or precision.blocks to same");
}

}  // namespace hrm::config
