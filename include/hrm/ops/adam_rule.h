#pragma once
// The elementwise update rules. No torch headers, because kernels include this file too.

namespace hrm::ops {

// - atan2: AdamATan2 (Everett et al., "Scaling Exponents Across Parameterizations and Optimizers", 2024), in the form
//   of the official HRM code. Adam with an arctangent instead of the quotient, so it needs no epsilon.
// - adamw: Loshchilov and Hutter 2019, like torch.optim.AdamW.
// - lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023. The sign of a blend of moment and
//   gradient.
// - sgd: Nesterov momentum and coupled weight decay, like torch.optim.SGD.
// - muon_direction, muon_apply: the steps before and after Muon's iteration (hrm/optim/muon.h). The first writes the
//   look-ahead momentum into `params`; the second reads finished directions from `grads`.
enum class AdamRule { atan2, adamw, lion, sgd, muon_direction, muon_apply };
constexpr int kAdamRules = 6;

constexpr bool has_first_moment(AdamRule rule) {
  return rule != AdamRule::muon_apply;
}
constexpr bool has_second_moment(AdamRule rule) {
  return rule == AdamRule::atan2 || rule == AdamRule::adamw;
}

}  // namespace hrm::ops
