#pragma once
// Maps hidden states to logits, with its own weight or that of the token embedding.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "hrm/nn/across.h"
#include "hrm/nn/cut.h"
#include "hrm/nn/gradient_ready.h"
#include "hrm/nn/parameter.h"

namespace hrm::nn {

// logits = hidden weight^T, without bias. With `across` the weight has this part's rows,
// across->cut().range(vocabulary).
//
// A trained weight of its own is a gradient group, whose gradient is complete before those of all blocks. Losses that
// use compute_weight() mark their input.
class LmHead : public torch::nn::Module, public HasComputeWeight, public HasCutParameters, public HasGradientGroup {
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

  // `hidden` or an alias of it, by which the backward pass tells when this use's gradients are complete.
  at::Tensor mark(const at::Tensor& hidden) const { return ready_ ? ready_->mark(hidden, group_, true) : hidden; }

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
  bool has_gradients() const override { return !parameters(/*recurse=*/false).empty() && weight_.requires_grad(); }
  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    ready_ = std::move(ready);
    group_ = group;
  }

 private:
  std::shared_ptr<const TensorAcross> across_;
  int64_t vocabulary_ = 0;
  at::Tensor weight_, compute_weight_;
  std::shared_ptr<GradientReady> ready_;  // null before ParameterSet::build, and if this is no group
  int group_ = GradientReady::kNoGroup;
};

}  // namespace hrm::nn
