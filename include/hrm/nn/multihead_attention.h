#pragma once
// Multi-head attention with biases, as in torch.nn.MultiheadAttention (Vaswani et al., arXiv 1706.03762).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"

namespace hrm::nn {

// Parameters: in_proj_weight (3 D, D) and in_proj_bias (3 D), with rows q, then k, then v. Submodule: out_proj.
class MultiheadAttention : public torch::nn::Module, public HasComputeWeight {
 public:
  MultiheadAttention(int64_t width, int64_t heads, at::Device device);

  // Self-attention of x (B, T, D). key_mask: (B, T) bool, true for keys to attend to; undefined: all. causal: no
  // attention to later positions. Throws Error(unexpected) if both are given.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_mask, bool causal) const;
  // Queries x (B, T, D) attend to all of memory (B, S, D).
  at::Tensor cross(const at::Tensor& x, const at::Tensor& memory) const;

  at::Tensor master_weight() const override { return in_proj_weight_; }
  void set_compute_weight(const at::Tensor& weight) override { compute_weight_ = weight; }

 private:
  // x @ rows^T + bias for rows first .. first + count - 1 of in_proj.
  at::Tensor project(const at::Tensor& x, int64_t first, int64_t count) const;
  at::Tensor split_heads(const at::Tensor& x) const;  // (B, T, D) -> (B, heads, T, D / heads)
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                    bool causal) const;

  int64_t width_, heads_;
  at::Tensor in_proj_weight_, in_proj_bias_, compute_weight_;
  std::shared_ptr<Linear> out_proj_;
};

}  // namespace hrm::nn
