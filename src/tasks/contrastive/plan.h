#pragma once
// A training step of a geometric memory, as hrm/tasks/plan.h asks for it.

#include <string>

#include "hrm/models/geometric_memory.h"
#include "hrm/tasks/contrastive_data.h"
#include "hrm/tasks/plan.h"

namespace hrm::tasks {

class ContrastivePlan : public ModelPlan {
 public:
  ContrastivePlan(const config::ContrastiveConfig& config, const ContrastiveSizes& sizes)
      : config_(config), sizes_(sizes) {}

  std::string name() const override { return "geometric memory"; }
  // Tokens that a sample reads; 1 of a vector.
  int64_t positions() const override { return sizes_.is_text ? config_.context : 1; }
  ModelOutline outline(const config::Config& config) const override;
  void add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const override;
  void add_times(const PlanInput& in, Plan& plan) const override;
  std::string shares() const override;
  double backward_done(const PlanInput& in, int64_t groups, int64_t count) const override;
  void rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t own, StepRehearsal& step) const override;
  // Products in float32 are cuBLAS's alone; autograd's thread has a handle of its own.
  double workspaces() const override {
    return config_.rule == config::ContrastiveRuleName::backprop ? 64 << 20 : 32 << 20;
  }

 private:
  bool one_kernel() const;

  config::ContrastiveConfig config_;
  ContrastiveSizes sizes_;
};

}  // namespace hrm::tasks
