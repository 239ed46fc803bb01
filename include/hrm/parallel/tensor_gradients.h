#pragma once
// Gradients of a model that is cut over the ranks of one axis.

#include <ATen/core/Tensor.h>

#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/optimizer.h"
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
  // optimizer.step() on this part. update_ratio: 0-dim float64 as there, over all parts; parameters that all parts hold
  // count once for each part.
  void step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio) const;

 private:
  nn::ParameterSet& parameters_;
  Comm& comm_;
  // Of the parameters that all parts hold, those that are added over the parts first; their places in joined_.
  std::vector<at::Tensor> gradients_, places_;
  size_t summed_ = 0;           // how many are added
  at::Tensor joined_, to_sum_;  // (n) float32, and the part of it that is added
  at::Tensor moved_;            // (2) float64: what the update ratio is made of
};

}  // namespace hrm::parallel
