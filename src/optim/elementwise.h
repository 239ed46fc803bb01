#pragma once
// Optimizers whose update is elementwise.

#include "hrm/ops/adam_rule.h"
#include "hrm/optim/optimizer.h"

namespace hrm::optim {

// The groups as the flat lists of ops::adam_.
struct FlatGroups {
  std::vector<std::string> names;
  std::vector<at::Tensor> params, grads, averages, copies;
  std::vector<std::vector<at::Tensor>> moments;  // one list for each of moment_names(), or empty if not provided
  std::vector<double> weight_decay, lr_factor;
};
// `moments`: the number of moments per parameter. Throws Error(unexpected) if lists are inconsistent or there are no
// parameters.
FlatGroups flatten(const std::vector<ParameterGroup>& groups, size_t moments);

// Updates all groups with one op over one list.
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
