#include "hrm/tasks/task.h"

#include "hrm/base/error.h"

namespace hrm::tasks {

std::optional<double> find_value(const NamedValues& values, const std::string& key) {
  for (const auto& [name, value] : values) {
    if (name == key) return value;
  }
  return std::nullopt;
}

double value_of(const NamedValues& values, const std::string& key) {
  const std::optional<double> value = find_value(values, key);
  require(value.has_value(), ExitCode::unexpected, "no metric '", key, "'");
  return *value;
}

void visit_model(torch::nn::Module& model, StateVisitor& visitor) {
  for (auto& item : model.named_parameters()) visitor.tensor(item.key(), item.value(), StateRole::weight);
  for (auto& item : model.named_buffers()) visitor.tensor(item.key(), item.value(), StateRole::weight);
}

}  // namespace hrm::tasks
