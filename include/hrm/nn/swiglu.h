#pragma once
// SwiGLU feed-forward layer (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "hrm/nn/linear.h"

namespace hrm::nn {

// Hidden width of a SwiGLU: expansion * width * 2/3, rounded to an integer, then up to a multiple of 256.
int64_t swiglu_width(int64_t width, double expansion);

// silu(gate) * up for gate_up (..., 2*I) = [gate, up] -> (..., I), same dtype. Saves only gate_up for the backward
// pass, which writes its gradient into one tensor.
at::Tensor silu_gate(const at::Tensor& gate_up);

// down_proj(silu(gate) * up). Submodules: gate_up_proj (2*I, width), whose first half is gate, and down_proj (width,
// I).
class SwiGLU : public torch::nn::Module {
 public:
  SwiGLU(int64_t width, double expansion, at::Device device);

  at::Tensor forward(const at::Tensor& x) const;  // (..., width) -> (..., width)

  const Linear& gate_up_proj() const { return *gate_up_proj_; }
  const Linear& down_proj() const { return *down_proj_; }

 private:
  std::shared_ptr<Linear> gate_up_proj_, down_proj_;
};

}  // namespace hrm::nn
