#pragma once
// Bidirectional multi-head self-attention.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/linear.h"
#include "hrm/nn/rotary.h"

namespace hrm::nn {

// softmax(q k^T / sqrt(head_dim)) v over all positions, without mask, bias or dropout. Submodules qkv_proj (3*D, D),
// rows in the order all heads of q, all of k, all of v, and o_proj (D, D).
class Attention : public torch::nn::Module {
 public:
  // `rotary` may be empty (no positions here).
  Attention(int64_t width, int64_t heads, RotaryTable rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h) const;  // (B, L, D) -> (B, L, D)

  const Linear& qkv_proj() const { return *qkv_proj_; }
  const Linear& o_proj() const { return *o_proj_; }
  int64_t heads() const { return heads_; }
  const RotaryTable& rotary() const { return rotary_; }

 private:
  int64_t heads_;
  RotaryTable rotary_;
  std::shared_ptr<Linear> qkv_proj_, o_proj_;
};

}  // namespace hrm::nn
