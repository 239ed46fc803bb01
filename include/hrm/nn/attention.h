#pragma once
// Bidirectional multi-head self-attention.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/linear.h"
#include "hrm/nn/rotary.h"

namespace hrm::nn {

// softmax(q k^T / sqrt(head_dim)) v over all positions, without mask, bias or dropout. Submodules: qkv_proj (3*D, D)
// and o_proj (D, D). The rows of qkv_proj are all heads of q, then of k, then of v.
class Attention : public torch::nn::Module {
 public:
  // An empty `rotary` disables the rotation.
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
