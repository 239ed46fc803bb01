#pragma once
// Linear layer with a float32 master weight.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/parameter.h"

namespace hrm::nn {

class LoraAdapter;

// y = x weight^T (+ bias). Parameters `weight` (out, in) and, where asked for, `bias` (out), float32, uninitialised.
// Submodule lora where it was given a low-rank adapter (hrm/nn/lora.h).
class Linear : public torch::nn::Module, public HasComputeWeight {
 public:
  Linear(int64_t in, int64_t out, at::Device device, bool bias = false);

  // (..., in) in the compute dtype -> (..., out). Gradients as in hrm/ops/linear.h: added in float32, in place.
  at::Tensor forward(const at::Tensor& x) const;
  // residual + forward(x), without a bias; the sum in the product's epilogue where a device can (ops::linear_add).
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // undefined without one

  // What the matrix products read: the copy in the compute dtype, or the master itself; while an adapter is merged, the
  // merged weight. Who reads it in place of calling forward() must look for an adapter() first.
  const at::Tensor& compute_weight() const;
  // The same, whatever an adapter does.
  const at::Tensor& base_weight() const { return compute_weight_; }

  // Without a bias, and once.
  void attach(std::shared_ptr<LoraAdapter> adapter);
  // What stands beside the weight now; null without an adapter, and while it is merged or switched off.
  const LoraAdapter* adapter() const;

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }

 private:
  at::Tensor weight_, bias_, compute_weight_;
  std::shared_ptr<LoraAdapter> lora_;
};

}  // namespace hrm::nn
