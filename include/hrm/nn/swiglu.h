#pragma once
// SwiGLU feed-forward layer (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"

namespace hrm::nn {

// Hidden width of a SwiGLU: expansion * width * 2/3, rounded to an integer, then up to a multiple of 256.
int64_t swiglu_width(int64_t width, double expansion);

// silu(gate) * up for gate_up (..., 2*I) = [gate, up] -> (..., I), same dtype. Saves only gate_up for the backward
// pass, which writes its gradient into one tensor.
at::Tensor silu_gate(const at::Tensor& gate_up);

// The convolution of URM (arXiv 2512.14693): depthwise, over this position and the one before. Parameters: `weight`
// (I, 1, 2), whose first tap multiplies the earlier position, and `bias` (I); float32, initially uniform in
// +-1/sqrt(2). They have no compute copy. The published code stores them in bfloat16, where most cannot move: values
// near 0.5 are 0.002 to 0.004 apart, and an update at the published rate is at most about 1.6e-4.
class DepthwiseConv : public torch::nn::Module, public HasOwnInit {
 public:
  DepthwiseConv(int64_t channels, at::Device device);

  at::Tensor taps() const { return weight_.view({-1, 2}); }  // (I, 2), a view of the weight
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }

  void init_own(uint64_t seed, const std::string& name) override;

 private:
  at::Tensor weight_, bias_;
};

// down_proj(silu(gate) * up); with a convolution down_proj(silu(dwconv(silu(gate) * up))). Submodules: gate_up_proj
// (2*I, width), whose first half is gate, down_proj (width, I), and optionally dwconv.
class SwiGLU : public torch::nn::Module {
 public:
  SwiGLU(int64_t width, double expansion, at::Device device, bool convolution = false);

  // (..., width) -> (..., width); with a convolution (B, L, width), where no value crosses from one row to another.
  at::Tensor forward(const at::Tensor& x) const;

  const Linear& gate_up_proj() const { return *gate_up_proj_; }
  const Linear& down_proj() const { return *down_proj_; }
  const DepthwiseConv* dwconv() const { return dwconv_.get(); }  // null without a convolution

 private:
  std::shared_ptr<Linear> gate_up_proj_, down_proj_;
  std::shared_ptr<DepthwiseConv> dwconv_;
};

}  // namespace hrm::nn
