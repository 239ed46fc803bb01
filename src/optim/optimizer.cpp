#include "hrm/optim/optimizer.h"

#include "optim/muon.h"

namespace hrm::optim {
ParameterGroup group_of(nn::ParameterSet& parameters, double weight_decay, const Ema* ema) {
  ParameterGroup group;
  for (const nn::Parameter& parameter : parameters.all()) {
    group.names.push_back(parameter.name);
    group.params.push_back(parameter.master);
    group.grads.push_back(parameter.master.grad());
    // A copy that is rounded to 8 bits is not the optimizer's to write.
    group.copies.push_back(parameter.fake_quantized ? parameter.master : parameter.compute);
  }
  if (ema != nullptr) group.averages = ema->shadows();
  group.weight_decay = weight_decay;
  return group;
}

std::vector<std::string> moment_names(config::OptimizerKind optimizer) {
  switch (optimizer) {
    case config::OptimizerKind::adam_atan2:
    case config::OptimizerKind::adamw:
      return {"exp_avg", "exp_avg_sq"};
    case config::OptimizerKind::lion:
    case config::OptimizerKind::sgd:
    case config::OptimizerKind::muon:
      break;
  }
  return {"momentum"};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  const auto elementwise = [&](ops::AdamRule rule) { return std::make_unique<Elementwise>(rule, options, groups); };
  switch (options.name) {
    case config::OptimizerKind::adam_atan2:
      return elementwise(ops::AdamRule::atan2);
    case config::OptimizerKind::adamw:
      return elementwise(ops::AdamRule::adamw);
    case config::OptimizerKind::lion:
      return elementwise(ops::AdamRule::lion);
    case config::OptimizerKind::sgd:
      return elementwise(ops::AdamRule::sgd);
    case config::OptimizerKind::muon:
      break;
  }
  return std::make_unique<Muon>(options, groups);
}

}  // namespace hrm::optim
