#include "hrm/optim/optimizer.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/adam_atan2.h"

namespace hrm::optim {
namespace {

// Adam's state, which both optimizers share, in one list over all groups.
class AdamBase : public Optimizer {
 public:
  AdamBase(OptimizerOptions options, std::vector<ParameterGroup> groups) : options_(std::move(options)) {
    for (const ParameterGroup& group : groups) {
      require(group.names.size() == group.params.size() && group.grads.size() == group.params.size(),
              ExitCode::unexpected, "a parameter group has ", group.params.size(), " tensors, ", group.names.size(),
              " names and ", group.grads.size(), " gradients");
      for (size_t i = 0; i < group.params.size(); ++i) {
        names_.push_back(group.names[i]);
        params_.push_back(group.params[i]);
        grads_.push_back(group.grads[i]);
        weight_decay_.push_back(group.weight_decay);
        exp_avgs_.push_back(at::zeros_like(group.params[i].detach()));
        exp_avg_sqs_.push_back(at::zeros_like(group.params[i].detach()));
      }
    }
    require(!params_.empty(), ExitCode::unexpected, "an optimizer without parameters");
    step_ = at::zeros({}, params_.front().options().requires_grad(false));
  }

  void visit_state(StateVisitor& visitor) override {
    visitor.tensor("optim.step", step_, StateRole::optimizer);
    for (size_t i = 0; i < names_.size(); ++i) {
      visitor.tensor("optim." + names_[i] + ".exp_avg", exp_avgs_[i], StateRole::optimizer);
      visitor.tensor("optim." + names_[i] + ".exp_avg_sq", exp_avg_sqs_[i], StateRole::optimizer);
    }
  }

 protected:
  OptimizerOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> params_, grads_, exp_avgs_, exp_avg_sqs_;
  std::vector<double> weight_decay_;
  at::Tensor step_;  // 0-dim float32: exact up to 2^24 steps
};

class AdamAtan2 final : public AdamBase {
 public:
  using AdamBase::AdamBase;

  void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip) override {
    ops::adam_atan2_(params_, grads_, exp_avgs_, exp_avg_sqs_, step_, lr, options_.beta1, options_.beta2, weight_decay_,
                     grad_scale, skip);
  }
};

// ATen's fused kernel, one call for each run of parameters with one weight decay.
class AdamW final : public AdamBase {
 public:
  AdamW(OptimizerOptions options, std::vector<ParameterGroup> groups)
      : AdamBase(std::move(options), std::move(groups)), steps_(params_.size(), step_) {}

  void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip) override {
    const at::NoGradGuard no_grad;
    const at::Tensor leave_out = skip.ne(0).to(at::kFloat);
    step_.add_(1 - leave_out);
    // The kernel divides by its grad_scale.
    const at::Tensor divisor = at::reciprocal(grad_scale);
    for (size_t begin = 0; begin < params_.size();) {
      size_t end = begin + 1;
      while (end < params_.size() && weight_decay_[end] == weight_decay_[begin]) ++end;
      const auto part = [&](const std::vector<at::Tensor>& list) {
        return at::TensorList(list).slice(begin, end - begin);
      };
      at::_fused_adamw_(part(params_), part(grads_), part(exp_avgs_), part(exp_avg_sqs_), {}, part(steps_), lr,
                        options_.beta1, options_.beta2, weight_decay_[begin], options_.eps, /*amsgrad=*/false,
                        /*maximize=*/false, divisor, leave_out);
      begin = end;
    }
  }

 private:
  std::vector<at::Tensor> steps_;  // the one step tensor for each parameter, as the kernel wants it
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  if (options.name == "adam_atan2") return std::make_unique<AdamAtan2>(options, std::move(groups));
  if (options.name == "adamw") return std::make_unique<AdamW>(options, std::move(groups));
  fail(ExitCode::usage, "unknown optimizer '", options.name, "'; use adam_atan2 or adamw");
}

}  // namespace hrm::optim
