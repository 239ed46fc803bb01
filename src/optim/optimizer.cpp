#include "hrm/optim/optimizer.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/adam.h"

namespace hrm::optim {
namespace {

// AdamATan2 and AdamW: one list over all groups, one op.
class Adam final : public Optimizer {
 public:
  Adam(ops::AdamRule rule, OptimizerOptions options, const std::vector<ParameterGroup>& groups)
      : rule_(rule), options_(std::move(options)) {
    for (const ParameterGroup& group : groups) {
      const size_t count = group.params.size();
      const auto optional = [count](const std::vector<at::Tensor>& list) {
        return list.empty() || list.size() == count;
      };
      require(group.names.size() == count && group.grads.size() == count && optional(group.averages) &&
                  optional(group.copies) && optional(group.exp_avgs) && optional(group.exp_avg_sqs),
              ExitCode::unexpected, "a parameter group has ", count, " tensors, ", group.names.size(), " names, ",
              group.grads.size(), " gradients, ", group.averages.size(), " averages, ", group.copies.size(),
              " copies, ", group.exp_avgs.size(), " and ", group.exp_avg_sqs.size(), " moments");
      const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(names_, group.names);
      append(params_, group.params);
      append(grads_, group.grads);
      append(averages_, group.averages);
      append(copies_, group.copies);
      append(exp_avgs_, group.exp_avgs);
      append(exp_avg_sqs_, group.exp_avg_sqs);
      weight_decay_.insert(weight_decay_.end(), count, group.weight_decay);
    }
    require(!params_.empty(), ExitCode::unexpected, "an optimizer without parameters");
    for (const auto* list : {&averages_, &copies_, &exp_avgs_, &exp_avg_sqs_}) {
      require(list->empty() || list->size() == params_.size(), ExitCode::unexpected,
              "some parameter groups have averages, copies or moments and others have none");
    }
    require(exp_avgs_.size() == exp_avg_sqs_.size(), ExitCode::unexpected, "one kind of moments alone was given");
    own_state_ = exp_avgs_.empty();
    for (const at::Tensor& param : own_state_ ? params_ : std::vector<at::Tensor>()) {
      exp_avgs_.push_back(at::zeros_like(param.detach()));
      exp_avg_sqs_.push_back(at::zeros_like(param.detach()));
    }
    step_ = at::zeros({}, params_.front().options().requires_grad(false));
  }

  void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio) override {
    ops::adam_({.rule = rule_,
                .params = params_,
                .grads = grads_,
                .exp_avgs = exp_avgs_,
                .exp_avg_sqs = exp_avg_sqs_,
                .averages = averages_,
                .copies = copies_,
                .weight_decay = weight_decay_,
                .step = step_,
                .lr = lr,
                .grad_scale = grad_scale,
                .skip = skip,
                .update_ratio = update_ratio,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.eps,
                .average_decay = options_.average_decay});
  }

  void visit_state(StateVisitor& visitor) override {
    visitor.tensor("optim.step", step_, StateRole::optimizer);
    if (!own_state_) return;
    for (size_t i = 0; i < names_.size(); ++i) {
      visitor.tensor("optim." + names_[i] + ".exp_avg", exp_avgs_[i], StateRole::optimizer);
      visitor.tensor("optim." + names_[i] + ".exp_avg_sq", exp_avg_sqs_[i], StateRole::optimizer);
    }
  }

 private:
  ops::AdamRule rule_;
  OptimizerOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> params_, grads_, averages_, copies_, exp_avgs_, exp_avg_sqs_;
  std::vector<double> weight_decay_;
  bool own_state_ = true;
  at::Tensor step_;  // 0-dim float32: exact up to 2^24 steps
};

}  // namespace

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

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  if (options.name == "adam_atan2") return std::make_unique<Adam>(ops::AdamRule::atan2, options, groups);
  if (options.name == "adamw") return std::make_unique<Adam>(ops::AdamRule::adamw, options, groups);
  fail(ExitCode::usage, "unknown optimizer '", options.name, "'; use adam_atan2 or adamw");
}

}  // namespace hrm::optim
