#pragma once
// Maps hidden states to logits, with its own weight or that of the token embedding.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "hrm/nn/across.h"
#include "hrm/nn/cut.h"
#include "hrm/nn/parameter.h"

namespace hrm::nn {

// logits = hidden weight^T, without bias. With `across` the weight has this part's rows,
// across->cut().range(vocabulary).
class LmHead : public torch::nn::Module, public HasComputeWeight, public HasCutParameters {
 public:
  // Untied: has a parameter `weight` (vocabulary, width), float32, uninitialised.
  LmHead(int64_t width, int64_t vocabulary, at::Device device, std::shared_ptr<const TensorAcross> across = nullptr);
  // Tied: reads `embedding` (vocabulary, width), a parameter of another module, and has no parameter itself. The
  // gradients of both uses accumulate in that parameter's buffer.
  explicit LmHead(const at::Tensor& embedding);
  // The same of a part of an embedding of `vocabulary` rows.
  LmHead(const at::Tensor& embedding, int64_t vocabulary, std::shared_ptr<const TensorAcross> across);

  // (..., width) -> (..., vocabulary) in the dtype of hidden. With `across` the logits of all parts, every part the
  // same; then without gradient, otherwise throws Error(unexpected).
  at::Tensor forward(const at::Tensor& hidden) const;

  // Null if the weight is the whole one. Otherwise a loss sees logits of this part's vocabulary, which begins at
  // first(), and the gradient that it gives to hidden is a partial sum.
  const TensorAcross* across() const { return across_.get(); }
  int64_t vocabulary() const { return vocabulary_; }  // of the whole
  int64_t first() const { return across_ ? across_->cut().range(vocabulary_).first : 0; }

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& compute_weight() const { return compute_weight_; }

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }
  std::vector<std::pair<at::Tensor, ParameterCut>> cut_parameters() const override;

 private:
  std::shared_ptr<const TensorAcross> across_;
  int64_t vocabulary_ = 0;
  at::Tensor weight_, compute_weight_;
};

}  // namespace hrm::nn
