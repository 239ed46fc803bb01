#pragma once
// The block of HRM and TRM, and the recurrent module made of them.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <tuple>
#include <vector>

#include "hrm/nn/attention.h"
#include "hrm/nn/fp8.h"
#include "hrm/nn/gradient_ready.h"
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
class Block : public torch::nn::Module, public HasGradientGroup {
 public:
  Block(const BlockSizes& sizes, const RotaryTable& rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h) const;  // (B, L, D) -> (B, L, D)
  // forward(h) + addend, not recorded.
  at::Tensor forward_add(const at::Tensor& h, const at::Tensor& addend) const;
  // Position 0 of forward(h) alone, (B, D).
  at::Tensor forward_first(const at::Tensor& h) const;
  // forward(h) with matrix products in 8 bits, not recorded. h8: h in e4m3 under h_slot; both are not read where the
  // MLP mixes. Returns the output, and it in e4m3 where fp8.output is defined.
  std::tuple<at::Tensor, at::Tensor> forward_fp8(const at::Tensor& h, const at::Tensor& h8, const at::Tensor& h_slot,
                                                 const Fp8Block& fp8) const;

  const Attention* attention() const { return self_attn_.get(); }  // null with mlp_t
  const SwiGLU& mlp() const { return *mlp_; }

  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    gradient_ready_ = std::move(ready);
    gradient_group_ = group;
  }

 private:
  // The first half of the block, through which every recorded use goes.
  at::Tensor mix_positions(const at::Tensor& input) const;

  double eps_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<SwiGLU> mlp_t_, mlp_;
  std::shared_ptr<GradientReady> gradient_ready_;  // null without a ParameterSet
  int gradient_group_ = GradientReady::kNoGroup;
};

// forward(h, injection): the blocks in order, applied to h + injection. Submodules layers.0, layers.1, ...
class ReasoningModule : public torch::nn::Module {
 public:
  ReasoningModule(int64_t layers, const BlockSizes& sizes, const RotaryTable& rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h, const at::Tensor& injection) const;  // (B, L, D) each
  // Position 0 of the same, (B, D): the last block leaves out what only the other positions need.
  at::Tensor forward_first(const at::Tensor& h, const at::Tensor& injection) const;
  // forward() `times` times, h = forward(h, injection), for a recursion whose result is not differentiated: with matrix
  // products in 8 bits where set_fp8() gave what they need and it is active. Call without gradient mode.
  at::Tensor recur(const at::Tensor& h, const at::Tensor& injection, int64_t times = 1) const;
  // forward_first() in the same way; the last block computes in the compute dtype.
  at::Tensor recur_first(const at::Tensor& h, const at::Tensor& injection) const;

  void set_fp8(std::shared_ptr<const Fp8Level> fp8) { fp8_ = std::move(fp8); }
  const std::vector<std::shared_ptr<Block>>& layers() const { return layers_; }

 private:
  // h + injection through the first `layers` blocks.
  at::Tensor forward_fp8(const at::Tensor& h, const at::Tensor& injection, size_t layers) const;

  std::shared_ptr<const Fp8Level> fp8_;
  std::vector<std::shared_ptr<Block>> layers_;
};

}  // namespace hrm::nn
