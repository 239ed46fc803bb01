#pragma once
// Gradients of a model that is cut over the ranks of one axis.

#include <ATen/core/Tensor.h>

#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/clip.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// Adds the gradients of parameters that all parts hold (nn::Parameter::sum_over_parts), and computes the norm of the
// whole model's gradients. All ranks of the axis call the same methods; results are the same bits on each. Nothing
// waits for a device, so a step can be captured.
class TensorGradients {
 public:
  // Both must outlive this; the set must be built, and have its own gradient buffer (ParameterSet::flat_grad).
  TensorGradients(nn::ParameterSet& parameters, Comm& comm);

  // Once per step, after all backward passes and before gradients are read.
  void sum();
  // After sum(): the norm of the gradients of all parts, each element counted once, as optim::global_norm of the whole
  // model up to rounding.
  optim::GradNorm global_norm(double max_norm, const optim::GradNormExtras& extras) const;

 private:
  nn::ParameterSet& parameters_;
  Comm& comm_;
  std::vector<at::Tensor> gradients_, places_;  // what is added over the parts; its places in joined_
  at::Tensor joined_;                           // (n) float32
};

}  // namespace hrm::parallel
