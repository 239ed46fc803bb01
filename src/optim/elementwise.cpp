#include "optim/elementwise.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/adam.h"

namespace hrm::optim {
namespace {

void check(const ParameterGroup& group, size_t moments) {
  const size_t count = group.params.size();
  const auto optional = [count](const std::vector<at::Tensor>& list) { return list.empty() || list.size() == count; };
  require(
      group.names.size() == count && group.grads.size() == count && optional(group.averages) && optional(group.copies),
      ExitCode::unexpected, "a parameter group has ", count, " tensors, ", group.names.size(), " names, ",
      group.grads.size(), " gradients, ", group.averages.size(), " averages and ", group.copies.size(), " copies");
  require(group.moments.empty() || group.moments.size() == moments, ExitCode::unexpected, "a parameter group has ",
          group.moments.size(), " moments per parameter, but the optimizer needs ", moments);
  for (const std::vector<at::Tensor>& list : group.moments) {
    require(list.size() == count, ExitCode::unexpected, "a parameter group has ", count, " tensors, but ", list.size(),
            " tensors of one moment");
  }
}

}  // namespace

FlatGroups flatten(const std::vector<ParameterGroup>& groups, size_t moments) {
  FlatGroups all;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const ParameterGroup& group : groups) {
    check(group, moments);
    append(all.names, group.names);
    append(all.params, group.params);
    append(all.grads, group.grads);
    append(all.averages, group.averages);
    append(all.copies, group.copies);
    if (!group.moments.empty()) all.moments.resize(moments);
    for (size_t i = 0; i < group.moments.size(); ++i) append(all.moments[i], group.moments[i]);
    all.weight_decay.insert(all.weight_decay.end(), group.params.size(), group.weight_decay);
    all.lr_factor.insert(all.lr_factor.end(), group.params.size(), group.lr_factor);
  }
  require(!all.params.empty(), ExitCode::unexpected, "an optimizer needs at least one parameter");
  const auto all_or_none = [&](const std::vector<at::Tensor>& list) {
    require(list.empty() || list.size() == all.params.size(), ExitCode::unexpected,
            "some parameter groups have averages, copies or moments and others have none");
  };
  all_or_none(all.averages);
  all_or_none(all.copies);
  for (const auto& list : all.moments) all_or_none(list);
  return all;
}

Elementwise::Elementwise(ops::AdamRule rule, const OptimizerOptions& options, const std::vector<ParameterGroup>& groups)
    : rule_(rule),
      options_(options),
      moment_names_(ops::has_second_moment(rule) ? std::vector<std::string>{"exp_avg", "exp_avg_sq"}
                                                 : std::vector<std::string>{"momentum"}) {
  all_ = flatten(groups, moment_names_.size());
  own_state_ = all_.moments.empty();
  if (own_state_) all_.moments.resize(moment_names_.size());
  for (size_t i = 0; own_state_ && i < all_.params.size(); ++i) {
    for (auto& list : all_.moments) list.push_back(at::zeros_like(all_.params[i].detach()));
  }
  step_ = at::zeros({}, all_.params.front().options().requires_grad(false));
}

void Elementwise::step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                       const at::Tensor& update_ratio) {
  ops::adam_({.rule = rule_,
              .params = all_.params,
              .grads = all_.grads,
              .exp_avgs = all_.moments[0],
              .exp_avg_sqs = ops::has_second_moment(rule_) ? at::TensorList(all_.moments[1]) : at::TensorList(),
              .averages = all_.averages,
              .copies = all_.copies,
              .weight_decay = all_.weight_decay,
              .lr_factor = all_.lr_factor,
              .step = step_,
              .lr = lr,
              .grad_scale = grad_scale,
              .skip = skip,
              .update_ratio = update_ratio,
              .beta1 = rule_ == ops::AdamRule::sgd ? options_.momentum : options_.beta1,
              .beta2 = options_.beta2,
              .eps = options_.eps,
              .average_decay = options_.average_decay});
}

void Elementwise::visit_state(StateVisitor& visitor) {
  visitor.tensor("optim.step", step_, StateRole::optimizer);
  if (!own_state_) return;
  for (size_t i = 0; i < all_.names.size(); ++i) {
    for (size_t kind = 0; kind < moment_names_.size(); ++kind) {
      visitor.tensor("optim." + all_.names[i] + "." + moment_names_[kind], all_.moments[kind][i], StateRole::optimizer);
    }
  }
}

}  // namespace hrm::optim
