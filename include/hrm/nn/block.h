#pragma once
// The block of HRM, TRM and URM, and the recurrent module built from it.

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
  bool mlp_t = false;        // mix positions with a SwiGLU over them instead of attention
  bool convolution = false;  // of the SwiGLU over the width
};

// Post-norm: h = rms(h + mix(h)); h = rms(h + mlp(h)), with a parameter-free RMSNorm. mix is self_attn. With mlp_t it
// is a SwiGLU over the sequence axis; its residual and norm also run over that axis.
class Block : public torch::nn::Module, public HasGradientGroup {
 public:
  Block(const BlockSizes& sizes, const RotaryTable& rotary, at::Device device);

  at::Tensor forward(const at::Tensor& h) const;  // (B, L, D) -> (B, L, D)
  // forward(h) + addend, without gradient.
  at::Tensor forward_add(const at::Tensor& h, const at::Tensor& addend) const;
  // Position 0 of forward(h), (B, D).
  at::Tensor forward_first(const at::Tensor& h) const;
  // forward(h) with fp8 GEMMs, without gradient and without a convolution. h8: h in e4m3 under h_slot; both are unused
  // with mlp_t. Returns the output, and also its e4m3 version if fp8.output is defined.
  std::tuple<at::Tensor, at::Tensor> forward_fp8(const at::Tensor& h, const at::Tensor& h8, const at::Tensor& h_slot,
                                                 const Fp8Block& fp8) const;

  const Attention* attention() const { return self_attn_.get(); }  // null with mlp_t
  const SwiGLU& mlp() const { return *mlp_; }

  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    gradient_ready_ = std::move(ready);
    gradient_group_ = group;
  }

 private:
  // The first half of the block. Every recorded use of the block passes through it.
  at::Tensor mix_positions(const at::Tensor& input) const;

  double eps_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<SwiGLU> mlp_t_, mlp_;
  std::shared_ptr<GradientReady> gradient_ready_;  // null without a ParameterSet
  int gradient_group_ = GradientReady::kNoGroup;
};

// forward(h, injection) applies the blocks in order to h + injection. Submodules: layers.0, layers.1, ...; if `flat`
// 0, 1, ...
class ReasoningModule : public torch::nn::Module {
 public:
  ReasoningModule(int64_t layers, const BlockSizes& sizes, const RotaryTable& rotary, at::Device device,
                  bool flat = false);

  at::Tensor forward(const at::Tensor& h, const at::Tensor& injection) const;  // (B, L, D) each
  // Position 0 of forward(), (B, D). The last block skips the work that only other positions need.
  at::Tensor forward_first(const at::Tensor& h, const at::Tensor& injection) const;
  // Repeats h = forward(h, injection) `times` times, for recursions whose result is not differentiated. GEMMs run in
  // fp8 if set_fp8() has provided an active level. Call without gradient mode.
  at::Tensor recur(const at::Tensor& h, const at::Tensor& injection, int64_t times = 1) const;
  // The same for forward_first(); the last block computes in the compute dtype.
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
