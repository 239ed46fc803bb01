#pragma once
// Optimizers of the dense parameters.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/config/optim_settings.h"
#include "hrm/nn/parameter.h"
#include "hrm/optim/ema.h"
#include "hrm/optim/muon.h"
#include "hrm/state/registry.h"

namespace hrm::optim {

// Parameters that share a weight decay and a rate, with their gradients, averages and compute copies. names, params and
// grads have equal length; all are float32 and contiguous. averages and copies are empty or of the same length, alike
// in all groups.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> averages = {};  // EMAs of the parameters, float32
  std::vector<at::Tensor> copies = {};    // bfloat16 or float16 copies, or the parameter itself where it has none
  double weight_decay = 0;
  // Where the optimizer's own state lies, zeroed: one list for each of moment_names(), each as long as params, and
  // registered by who gives it. Empty: the optimizer allocates and registers it. In all groups alike.
  std::vector<std::vector<at::Tensor>> moments = {};
  double lr_factor = 1;  // of the learning rate
  // Only for muon: its iteration updates them, each as this many stacked matrices (the experts of a mixture); 0:
  // AdamW does. Their first dimension is rows, the others are columns.
  int64_t matrices = 0;
};

// All parameters of a set with their compute copies and, where given, their EMAs.
ParameterGroup group_of(nn::ParameterSet& parameters, double weight_decay, const Ema* ema = nullptr);

class Optimizer : public Stateful {
 public:
  // One update of all groups from the current gradients, each multiplied by grad_scale (the clip coefficient). Averages
  // and copies are updated in the same pass.
  // lr, grad_scale, skip: 0-dim float32 on the parameters' device, so that a captured graph sees new values. A non-zero
  // (or NaN) skip leaves parameters, averages, copies and state untouched. update_ratio: 0-dim float64 on that device
  // or undefined; becomes |change of the parameters| / |parameters before|, 0 for a skip. With shape (2) it becomes the
  // squares of both. Works on the current stream without host synchronisation; gradients are only read.
  virtual void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                    const at::Tensor& update_ratio = {}) = 0;
};

struct OptimizerOptions {
  config::OptimizerKind name = config::OptimizerKind::adam_atan2;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;         // of AdamW alone
  double average_decay = 0;  // of the groups' averages
  double momentum = 0.95;    // of sgd and muon
  // Only for muon (hrm/optim/muon.h). The last one: the rate of the parameters that AdamW updates, relative to lr.
  config::MuonScale muon_scale = config::MuonScale::original;
  config::MuonPrecision muon_precision = config::MuonPrecision::bf16;
  double adamw_lr_ratio = 1;
  int64_t muon_stack = kMuonStackElements;  // elements of matrices that are iterated together
};

// The moments that an optimizer keeps for each parameter: "exp_avg" and "exp_avg_sq" for Adam's kind, otherwise
// "momentum". For muon: those of its matrices.
std::vector<std::string> moment_names(config::OptimizerKind optimizer);

// Optimizers and their state: "optim.step" (0-dim float32, updates done so far) and "optim.<name>.<moment>" for each
// parameter and moment unless they were given, role optimizer. The rules: hrm/ops/adam.h, hrm/optim/muon.h. Throws
// Error(unexpected) when a group's lists do not fit together, Error(usage) when muon finds no matrix.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups);

}  // namespace hrm::optim
