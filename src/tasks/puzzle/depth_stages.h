#pragma once
// The stages of model.depth_curriculum (CGAR, arXiv 2511.08653): a third of the cycles, two thirds, all; at least one H
// and two L cycles.

#include <array>
#include <cstdint>

#include "hrm/config/config.h"

namespace hrm::tasks {

struct DepthStage {
  double until = 1;  // share of the run's steps after which it ends
  int64_t H_cycles = 0, L_cycles = 0;
};

std::array<DepthStage, 3> depth_stages(const config::ModelConfig& model);

// The stage of a step when this share of the run is done, from 0 to 1.
DepthStage depth_stage_at(const config::ModelConfig& model, double done);

}  // namespace hrm::tasks
