#pragma once
// The Mamba2 block (Dao and Gu, arXiv 2405.21060) with the parameter names of Hugging Face's modeling_mamba2. Shapes: B
// rows, T positions, D width, I = expand * D, H = I / head_dim heads of P = head_dim channels. N state size, G groups,
// K kernel size, C = I + 2 G N convolution channels.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <limits>
#include <memory>

#include "hrm/nn/gradient_ready.h"
#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/norm.h"

namespace hrm::nn {

struct Mamba2Options {
  int64_t width = 0;  // D
  int64_t expand = 2, head_dim = 64, state = 128, groups = 8, kernel = 4;
  int64_t chunk = 256;  // positions per GEMM (ops::ssd_scan)
  double eps = 1e-5;
  bool bias = false, conv_bias = true;                                  // of in_proj and out_proj; of conv1d
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();  // clamp range of the time step

  int64_t inner() const { return expand * width; }                   // I
  int64_t heads() const { return inner() / head_dim; }               // H
  int64_t channels() const { return inner() + 2 * groups * state; }  // C
};

// The decoding state of a block. Updated in place, so that addresses are stable.
struct Mamba2State {
  at::Tensor conv;  // (B, C, K) compute dtype: the last K inputs of the convolution, zero-padded on the left
  at::Tensor ssm;   // (B, H, P, N) float32
};

// Intermediate values for tests.
struct Mamba2Trace {
  at::Tensor in_proj;     // (B, T, I + C + H)
  at::Tensor conv;        // (B, T, C) after silu and mask
  at::Tensor dt;          // (B, T, H) float32, after softplus and limits
  at::Tensor scan;        // (B, T, I) with the D term
  at::Tensor gated_norm;  // (B, T, I)
};

// Parameters: in_proj, conv1d, dt_bias, A_log, D, norm, out_proj. Computes in the compute dtype, but time steps,
// decays, states and the gated norm in float32.
class Mamba2Mixer : public torch::nn::Module, public HasOwnInit {
 public:
  Mamba2Mixer(const Mamba2Options& options, at::Device device);

  // u (B, T, D) -> (B, T, D). `mask`: (B, T), 1 for tokens and 0 for padding; undefined: no padding. It multiplies u
  // and the output of the convolution. The state still decays over padding, so decoding is only valid after left
  // padding. `state`: continues from this state and updates it; null: starts from the beginning.
  at::Tensor forward(const at::Tensor& u, const at::Tensor& mask, Mamba2State* state = nullptr,
                     Mamba2Trace* trace = nullptr) const;

  Mamba2State make_state(int64_t rows, at::ScalarType dtype) const;  // zeros
  // A_log = log(1..H), D = 1, dt log-uniform in 1e-3 .. 0.1.
  void init_own(uint64_t seed, const std::string& name) override;

 private:
  struct Conv1d;
  at::Tensor convolve(const at::Tensor& input, Mamba2State* state) const;  // (B, T, C), before the activation

  Mamba2Options options_;
  std::shared_ptr<Linear> in_proj_, out_proj_;
  std::shared_ptr<Conv1d> conv1d_;
  std::shared_ptr<RmsNorm> norm_;
  at::Tensor dt_bias_, A_log_, D_;
};

// r + mixer(norm(r)), in the dtype of r. `dtype` is the mixer's compute dtype; pass r in float32 to keep the residual
// stream exact.
class Mamba2Block : public torch::nn::Module, public HasGradientGroup {
 public:
  Mamba2Block(const Mamba2Options& options, at::Device device);

  at::Tensor forward(const at::Tensor& r, const at::Tensor& mask, at::ScalarType dtype,
                     Mamba2State* state = nullptr) const;  // see Mamba2Mixer::forward

  const RmsNorm& norm() const { return *norm_; }
  const Mamba2Mixer& mixer() const { return *mixer_; }

  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    gradient_ready_ = std::move(ready);
    gradient_group_ = group;
  }

 private:
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Mamba2Mixer> mixer_;
  std::shared_ptr<GradientReady> gradient_ready_;  // null without a ParameterSet
  int gradient_group_ = GradientReady::kNoGroup;
};

}  // namespace hrm::nn
