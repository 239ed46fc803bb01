#pragma once
// Gradients of a model that is cut over the ranks of one axis.

#include <ATen/core/Tensor.h>

#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/optimizer.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// Adds the gradients of parameters that all parts hold (nn::Parameter::sum_over_parts), and computes the norm and the
// update ratio of the whole model, in which each of these parameters counts once. All ranks of the axis call the same
// methods; results are the same bits on each. Nothing waits for a device, so a step can be captured.
class TensorGradients {
 public:
  // A parameter, or a piece of one, that all parts hold alike.
  struct HeldAlike {
    at::Tensor gradient, master;  // float32, of the same sizes on every part
    bool sum = false;             // nn::Parameter::sum_over_parts
  };

  // Both must outlive this; the set must be built, and have its own gradient buffer (ParameterSet::flat_grad).
  TensorGradients(nn::ParameterSet& parameters, Comm& comm);
  // Of a rank that holds only some of the gradients (ParameterShards::gradients, held_alike): `all` of them.
  TensorGradients(const at::Tensor& all, const std::vector<HeldAlike>& held_alike, Comm& comm);

  Comm& comm() const { return comm_; }
  // Once per step, after all backward passes, and after sums over the data axis, before gradients are read.
  void sum();
  // After sum(): the norm of this rank's gradients, 0-dim float64. Those that all parts hold count on the first part.
  at::Tensor own_norm() const;
  // After sum(): the norm of the gradients of all parts, each element counted once, as optim::global_norm of the whole
  // model up to rounding.
  optim::GradNorm global_norm(double max_norm, const optim::GradNormExtras& extras) const;
  // optimizer.step() on this rank's parameters. moved: the two squares of its update ratio, (2) float64; parameters
  // that all parts hold count on the first part.
  void step_own(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                const at::Tensor& moved) const;
  // optimizer.step() on this part. update_ratio: 0-dim float64 as there, of the whole model.
  void step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio) const;

 private:
  void take(const std::vector<HeldAlike>& held_alike);

  Comm& comm_;
  at::Tensor all_;  // gradients of this rank
  // Of what all parts hold, that which is added over the parts first; their places in joined_.
  std::vector<at::Tensor> gradients_, masters_, places_;
  size_t summed_ = 0;           // how many are added
  at::Tensor joined_, to_sum_;  // (n) float32, and the part of it that is added
  // On all parts but the first: the same masters before a step, and how far they moved.
  at::Tensor before_, change_;
  std::vector<at::Tensor> before_places_, change_places_;
  at::Tensor moved_;  // (2) float64: what the update ratio is made of
};

}  // namespace hrm::parallel
