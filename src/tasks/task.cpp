#include "hrm/tasks/task.h"

#include "hrm/base/error.h"

namespace hrm::tasks {

double value_of(const NamedValues& values, const std::string& key) {
  for (const auto& [name, value] : values) {
    if (name == key) return value;
  }
  fail(ExitCode::unexpected, "no metric '", key, "'");
}

void visit_model(torch::nn::Module& model, StateVisitor& visitor) {
  for (auto& item : model.named_parameters()) visitor.tensor(item.key(), item.value(), StateRole::weight);
  for (auto& item : model.named_buffers()) visitor.tensor(item.key(), item.value(), StateRole::weight);
}

}  // namespace hrm::tasks
