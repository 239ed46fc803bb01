#pragma once
// Maps hidden states to logits, with its own weight or that of the token embedding.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "hrm/nn/parameter.h"

namespace hrm::nn {

// logits = hidden weight^T, without bias.
class LmHead : public torch::nn::Module, public HasComputeWeight {
 public:
  // Untied: has a parameter `weight` (vocabulary, width), float32, uninitialised.
  LmHead(int64_t width, int64_t vocabulary, at::Device device);
  // Tied: reads `embedding` (vocabulary, width), a parameter of another module, and has no parameter itself. The
  // gradients of both uses accumulate in that parameter's buffer.
  explicit LmHead(const at::Tensor& embedding);

  at::Tensor forward(const at::Tensor& hidden) const;  // (..., width) -> (..., vocabulary) in the dtype of hidden

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& compute_weight() const { return compute_weight_; }

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }

 private:
  at::Tensor weight_, compute_weight_;
};

}  // namespace hrm::nn
