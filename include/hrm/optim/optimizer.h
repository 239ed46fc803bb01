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

// Parameters with the same weight decay and learning rate, and the tensors that belong to them. The lists names, params
// and grads have equal length; all tensors are float32 and contiguous. The lists averages and copies are empty or have
// the same length; this must be the same in all groups.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> averages = {};  // EMAs of the parameters, float32
  std::vector<at::Tensor> copies = {};    // bfloat16 or float16 compute copies, or the parameter itself if it has none
  double weight_decay = 0;
  // Zeroed tensors for the optimizer's state: one list for each of moment_names(), each as long as params. The caller
  // registers them. Empty: the optimizer allocates and registers its state. Must be the same in all groups.
  std::vector<std::vector<at::Tensor>> moments = {};
  double lr_factor = 1;  // of the learning rate
  // Only for muon: each parameter is this many stacked matrices (e.g. experts) and is updated by Muon; 0: AdamW updates
  // them. The first dimension is rows, the others are columns.
  int64_t matrices = 0;
};

// All parameters of a set with their compute copies and, if given, their EMAs.
ParameterGroup group_of(nn::ParameterSet& parameters, double weight_decay, const Ema* ema = nullptr);

class Optimizer : public Stateful {
 public:
  // Updates all groups once from the current gradients, each multiplied by grad_scale (the clip coefficient). The same
  // pass updates averages and copies.
  //
  // lr, grad_scale and skip are 0-dim float32 on the parameters' device, so that a captured graph sees new values. A
  // non-zero (or NaN) skip leaves parameters, averages, copies and state untouched.
  //
  // `update_ratio`: undefined, or float64 on that device. If 0-dim, it is set to |change of the parameters| /
  // |parameters before|, or 0 for a skip. If (2), it is set to the squares of both. Runs on the current stream without
  // host synchronisation; only reads the gradients.
  virtual void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                    const at::Tensor& update_ratio = {}) = 0;
};

struct OptimizerOptions {
  config::OptimizerKind name = config::OptimizerKind::adam_atan2;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;         // only AdamW
  double average_decay = 0;  // of the groups' averages
  double momentum = 0.95;    // of sgd and muon
  // Only muon (hrm/optim/muon.h). The last one is the ratio of AdamW's learning rate to lr.
  config::MuonScale muon_scale = config::MuonScale::original;
  config::MuonPrecision muon_precision = config::MuonPrecision::bf16;
  double adamw_lr_ratio = 1;
  int64_t muon_stack = kMuonStackElements;  // maximum elements of matrices that are iterated together
};

// The state that an optimizer keeps per parameter (muon: per matrix): "exp_avg" and "exp_avg_sq" for Adam variants,
// otherwise "momentum".
std::vector<std::string> moment_names(config::OptimizerKind optimizer);

// Creates an optimizer and its state (role optimizer): "optim.step" (0-dim float32, updates so far) and, for each
// parameter and moment, "optim.<name>.<moment>". Moments that the groups provide are not registered. Update rules:
// hrm/ops/adam.h, hrm/optim/muon.h. Throws Error(unexpected) if a group's lists are inconsistent, and Error(usage) if
// muon finds no matrix.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups);

}  // namespace hrm::optim
