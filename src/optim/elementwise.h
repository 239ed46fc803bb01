#pragma once
// The optimizers whose update looks at one element at a time.

#include "hrm/ops/adam_rule.h"
#include "hrm/optim/optimizer.h"

namespace hrm::optim {

// The groups as the lists that ops::adam_ takes.
struct FlatGroups {
  std::vector<std::string> names;
  std::vector<at::Tensor> params, grads, averages, copies;
  std::vector<std::vector<at::Tensor>> moments;  // as moment_names() of the optimizer, or empty: none were given
  std::vector<double> weight_decay, lr_factor;
};
// `moments`: how many kinds the optimizer has. Throws Error(unexpected) when lists do not fit together, or when there
// is no parameter.
FlatGroups flatten(const std::vector<ParameterGroup>& groups, size_t moments);

// One list over all groups, one op.
class Elementwise final : public Optimizer {
 public:
  Elementwise(ops::AdamRule rule, const OptimizerOptions& options, const std::vector<ParameterGroup>& groups);
  void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio) override;
  void visit_state(StateVisitor& visitor) override;

 private:
  ops::AdamRule rule_;
  OptimizerOptions options_;
  FlatGroups all_;
  std::vector<std::string> moment_names_;
  bool own_state_ = true;
  at::Tensor step_;  // 0-dim float32: exact up to 2^24 steps
};

}  // namespace hrm::optim
