#pragma once
// The block of HRM and TRM, and the recurrent module made of them.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "hrm/nn/attention.h"
#include "hrm/nn/swiglu.h"

namespace hrm::nn {

struct BlockSizes {
  int64_t width = 0;      // D
  int64_t positions = 0;  // L
  int64_t heads = 0;
  double expansion = 4;
  double rms_norm_eps = 1e-5;
  bool mlp_t = false;  // mix positions by a SwiGLU over them instead of attention
};

// Post-norm: h = rms(h + mix(h)); h = rms(h + mlp(h)), with the parameter-free RMSNorm. mix is self_attn, or with
// mlp_t a SwiGLU over the sequence axis, whose residual and norm also run over that axis.
class Block : public torch::nn::Module {
 public:
  Block(const BlockSizes& sizes, const RotaryTable& rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h) const;  // (B, L, D) -> (B, L, D)
  // Position 0 of forward(h) alone, (B, D).
  at::Tensor forward_first(const at::Tensor& h) const;

 private:
  at::Tensor mix_positions(const at::Tensor& h) const;

  double eps_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<SwiGLU> mlp_t_, mlp_;
};

// forward(h, injection): the blocks in order, applied to h + injection. Submodules layers.0, layers.1, ...
class ReasoningModule : public torch::nn::Module {
 public:
  ReasoningModule(int64_t layers, const BlockSizes& sizes, const RotaryTable& rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h, const at::Tensor& injection) const;  // (B, L, D) each
  // Position 0 of the same, (B, D): the last block leaves out what only the other positions need.
  at::Tensor forward_first(const at::Tensor& h, const at::Tensor& injection) const;

 private:
  std::vector<std::shared_ptr<Block>> layers_;
};

}  // namespace hrm::nn
