#include "hrm/tasks/task.h"

#include "hrm/base/error.h"

namespace hrm::tasks {

int64_t planned_steps(const config::TrainConfig& config, const Task& task) {
  if (config.steps > 0) return config.steps;
  // In this order of operations, as the official trainer rounds.
  const auto steps =
      static_cast<int64_t>(config.epochs * task.samples_per_epoch() / static_cast<double>(config.global_batch_size));
  require(steps > 0, ExitCode::usage, "train.epochs = ", config.epochs, " is less than one step of ",
          config.global_batch_size, " samples; set train.steps or more epochs");
  return steps;
}

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

std::map<std::string, nn::ParameterCut> cut_weights_of(const torch::nn::Module& model) {
  std::map<std::string, nn::ParameterCut> cuts;
  const nn::ParameterCuts all(model);
  for (const auto& item : model.named_parameters()) {
    if (const nn::ParameterCut cut = all.of(item.value()); !cut.whole()) cuts.emplace(item.key(), cut);
  }
  return cuts;
}

void visit_model(torch::nn::Module& model, StateVisitor& visitor) {
  for (auto& item : model.named_parameters()) visitor.tensor(item.key(), item.value(), StateRole::weight);
  for (auto& item : model.named_buffers()) visitor.tensor(item.key(), item.value(), StateRole::weight);
}

}  // namespace hrm::tasks
