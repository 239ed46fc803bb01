#pragma once
// Linear layer with a float32 master weight.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "hrm/nn/parameter.h"

namespace hrm::nn {

// y = x weight^T (+ bias). Parameters `weight` (out, in) and, where asked for, `bias` (out), float32, uninitialised.
class Linear : public torch::nn::Module, public HasComputeWeight {
 public:
  Linear(int64_t in, int64_t out, at::Device device, bool bias = false);

  // (..., in) in the compute dtype -> (..., out). Gradients as in hrm/ops/linear.h: added in float32, in place.
  at::Tensor forward(const at::Tensor& x) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // undefined without one

  // What the matrix products read: the copy in the compute dtype, or the master itself.
  const at::Tensor& compute_weight() const { return compute_weight_; }

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }

 private:
  at::Tensor weight_, bias_, compute_weight_;
};

}  // namespace hrm::nn
