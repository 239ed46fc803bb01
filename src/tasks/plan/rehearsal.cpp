#include "hrm/tasks/plan.h"

namespace hrm::tasks {

void StepRehearsal::note(const std::string& what, StepExchange::Moment moment, double ready) {
  const auto& operations = comm_->traffic().operations;
  while (exchanges_.size() < operations.size()) {
    exchanges_.push_back({what, operations[exchanges_.size()], moment, ready});
  }
}

}  // namespace hrm::tasks
