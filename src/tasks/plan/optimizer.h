#pragma once
// What the optimizer holds and does, for plan.h.

#include <string>

#include "hrm/optim/groups.h"
#include "hrm/tasks/plan.h"

namespace hrm::tasks {

struct PlannedOptimizer {
  double state = 0;  // bytes, of all ranks together
  std::string note;
  double buffers = 0;  // bytes of Muon's iteration
  double moved = 0;    // bytes of its passes over memory
  // Of Muon's products.
  double products = 0;        // FLOP
  double products_moved = 0;  // bytes
  bool exact_products = false;
};

PlannedOptimizer planned_optimizer(const PlanInput& input);

// Fills what planned_optimizer needs to know of a parameter.
void add_muon_matrix(PlanInput& input, const std::string& name, at::IntArrayRef sizes,
                     const optim::GroupDefaults& defaults = {});

}  // namespace hrm::tasks
