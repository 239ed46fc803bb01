#include "tasks/puzzle/depth_stages.h"

#include <algorithm>

namespace hrm::tasks {

std::array<DepthStage, 3> depth_stages(const config::ModelConfig& m) {
  const auto stage = [&](double until, int64_t thirds) {
    const auto part = [&](int64_t all, int64_t least) {
      return std::min(all, std::max(least, (thirds * all + 2) / 3));
    };
    return DepthStage{.until = until, .H_cycles = part(m.H_cycles, 1), .L_cycles = part(m.L_cycles, 2)};
  };
  return {stage(0.3, 1), stage(0.6, 2), stage(1, 3)};
}

DepthStage depth_stage_at(const config::ModelConfig& model, double done) {
  const std::array<DepthStage, 3> stages = depth_stages(model);
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const DepthStage& s) { return done < s.until; });
  return found == stages.end() ? stages.back() : *found;
}

}  // namespace hrm::tasks
