#pragma once
// An estimate of the memory and time of training, from shapes alone.

#include <memory>
#include <vector>

#include "hrm/tasks/plan.h"

namespace hrm::commands {

using tasks::GpuFacts;
using tasks::known_gpus;
using tasks::Plan;
using tasks::PlanInput;
using tasks::PlanItem;

// Counts the parameters of the configured model; `train_examples` is left 0.
PlanInput make_plan_input(const config::Config& config, std::shared_ptr<const tasks::ModelPlan> model,
                          const GpuFacts& gpu);

// Sets the counts of `input` to those of this model, or part of it.
void count_parameters(const tasks::ModelOutline& outline, PlanInput& input);

// Error(usage) where the GPU cannot do what the configuration asks for, or the batch cannot be split.
Plan make_plan(const PlanInput& input);
// Only plan.step_ms of it.
double planned_step_ms(const PlanInput& input);

}  // namespace hrm::commands
