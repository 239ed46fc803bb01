#pragma once
// Linear layer with a float32 master weight.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/parameter.h"

namespace hrm::nn {

class LoraAdapter;

// How a layer holds its weight.
enum class WeightFormat {
  f32,  // as a parameter, which may train
  nf4,  // as NF4 alone, frozen
};

// y = x weight^T (+ bias). Parameters `weight` (out, in) and, where asked for, `bias` (out), float32, uninitialised.
// Submodule lora where it was given a low-rank adapter (hrm/nn/lora.h).
//
// With WeightFormat::nf4 the parameter `weight` is on the meta device: a name and a shape, no numbers and no memory.
// hold_nf4() brings the numbers, and share_nf4_workspace() where they are dequantised.
class Linear : public torch::nn::Module, public HasComputeWeight {
 public:
  Linear(int64_t in, int64_t out, at::Device device, bool bias = false, WeightFormat format = WeightFormat::f32);

  // (..., in) in the compute dtype -> (..., out). Gradients as in hrm/ops/linear.h: added in float32, in place.
  at::Tensor forward(const at::Tensor& x) const;
  // residual + forward(x), without a bias; the sum in the product's epilogue where a device can (ops::linear_add).
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // undefined without one

  // What the matrix products read: the copy in the compute dtype, or the master itself; while an adapter is merged, the
  // merged weight. Who reads it instead of calling forward() must ask needs_forward() first.
  const at::Tensor& compute_weight() const;
  // The same, whatever an adapter does.
  const at::Tensor& base_weight() const { return compute_weight_; }
  // Whether forward() does more than one product with a weight that stays: an adapter is beside it, or it is NF4.
  bool needs_forward() const { return format_ == WeightFormat::nf4 || adapter() != nullptr; }

  // Without a bias, and once.
  void attach(std::shared_ptr<LoraAdapter> adapter);
  // What is beside the weight now; null without an adapter, and while it is merged (which one beside NF4 never is)
  // or switched off.
  const LoraAdapter* adapter() const;

  WeightFormat format() const { return format_; }
  // With WeightFormat::nf4: quantises `weight` (out, in), any floating-point dtype and device, with double
  // quantisation. Error(checkpoint) with its name where it is not finite. Waits for the device.
  void hold_nf4(const at::Tensor& weight, const std::string& name);
  const ops::Nf4Tensor& nf4() const { return nf4_; }  // undefined before
  void set_nf4_workspace(const at::Tensor& workspace) { compute_weight_ = workspace; }
  FrozenWeight frozen_weight() const { return {.weight = compute_weight_, .nf4 = nf4_}; }

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }

 private:
  at::Device device_;
  WeightFormat format_;
  at::Tensor weight_, bias_, compute_weight_;
  ops::Nf4Tensor nf4_;
  std::shared_ptr<LoraAdapter> lora_;
};

}  // namespace hrm::nn
