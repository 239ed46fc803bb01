#include "hrm/optim/optimizer.h"

#include "hrm/base/error.h"
#include "optim/muon.h"

namespace hrm::optim {
ParameterGroup group_of(nn::ParameterSet& parameters, double weight_decay, const Ema* ema) {
  ParameterGroup group;
  for (const nn::Parameter& parameter : parameters.all()) {
    group.names.push_back(parameter.name);
    group.params.push_back(parameter.master);
    group.grads.push_back(parameter.master.grad());
    group.copies.push_back(parameter.compute);
  }
  if (ema != nullptr) group.averages = ema->shadows();
  group.weight_decay = weight_decay;
  return group;
}

std::vector<std::string> moment_names(const std::string& optimizer) {
  if (optimizer == "adam_atan2" || optimizer == "adamw") return {"exp_avg", "exp_avg_sq"};
  if (optimizer == "lion" || optimizer == "sgd" || optimizer == "muon") return {"momentum"};
  fail(ExitCode::usage, "unknown optimizer '", optimizer, "'; use adam_atan2, adamw, lion, sgd or muon");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  const auto elementwise = [&](ops::AdamRule rule) { return std::make_unique<Elementwise>(rule, options, groups); };
  if (options.name == "adam_atan2") return elementwise(ops::AdamRule::atan2);
  if (options.name == "adamw") return elementwise(ops::AdamRule::adamw);
  if (options.name == "lion") return elementwise(ops::AdamRule::lion);
  if (options.name == "sgd") return elementwise(ops::AdamRule::sgd);
  moment_names(options.name);  // throws for an unknown one
  return std::make_unique<Muon>(options, groups);
}

}  // namespace hrm::optim
