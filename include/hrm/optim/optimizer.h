#pragma once
// Optimizers of the dense parameters.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/state/registry.h"

namespace hrm::optim {

// Parameters that share a weight decay. names, params and grads have equal length; all float32 and contiguous.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  double weight_decay = 0;
};

class Optimizer : public Stateful {
 public:
  // One update of all groups from the gradients as they stand, each multiplied by grad_scale (the clip coefficient).
  // lr, grad_scale, skip: 0-dim float32 on the parameters' device, so that a captured graph sees new values. A non-zero
  // (or NaN) skip leaves parameters and state untouched. Works on the current stream without host synchronisation.
  // The gradients may be left scaled: zero them before the next accumulation.
  virtual void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip) = 0;
};

struct OptimizerOptions {
  std::string name = "adam_atan2";  // or "adamw"
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;  // adamw alone
};

// Optimizers and their state: "optim.step" (0-dim float32, updates done so far) and for each parameter
// "optim.<name>.exp_avg" and "optim.<name>.exp_avg_sq", role optimizer.
//   adam_atan2  hrm/ops/adam_atan2.h
//   adamw       p -= lr wd p;  p -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)   (Loshchilov and Hutter
//               2019, as torch.optim.AdamW)
// Throws Error(usage) for an unknown name, Error(unexpected) when a group's lists do not fit together.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups);

}  // namespace hrm::optim
