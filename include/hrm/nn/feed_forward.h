#pragma once
// The feed-forward part of a language model's block. One interface covers dense layers and mixtures of experts.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hrm/nn/across.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/norm.h"
#include "hrm/nn/step_rows.h"

namespace hrm::nn {

// A loss term that a layer contributes in addition to its output, e.g. the load balance of experts.
struct AuxiliaryLoss {
  std::string name;   // the total loss gets weight * value
  at::Tensor value;   // 0-dim float32, differentiable
  double weight = 0;  // the loss gets weight * value
};

class HasAuxiliaryLosses {
 public:
  virtual ~HasAuxiliaryLosses() = default;
  // Returns the losses of all recorded forward() calls since the last call, at least one per forward(). Calls outside
  // gradient mode contribute none.
  virtual std::vector<AuxiliaryLoss> take_auxiliary_losses() = 0;
};

class FeedForward : public torch::nn::Module, public HasAuxiliaryLosses {
 public:
  // (tokens, D) in the compute dtype -> same shape and dtype. Differentiable in gradient mode. Never reads back to the
  // host.
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  // residual + forward(x), with fewer passes over memory if the layer supports it.
  virtual at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual);
  // x + forward(norm(x)), likewise.
  virtual at::Tensor normed_add(const RmsNorm& norm, const at::Tensor& x);
  // A decoding step: x + forward(norm(x)) without gradient, with fewer kernels if the layer supports it. `next`: the
  // norm applied to the result, or null; see StepRows.
  virtual StepRows step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm* next);
  // The same without residual: forward(norm(x)), or this part's partial sums of it.
  virtual at::Tensor step_sums(const RmsNorm& norm, const StepRows& rows);
  // A layer that is cut: this part's rows, (k, D), of `tokens` -> every part's partial sums of forward() for them, with
  // products beside the exchange if the layer supports it.
  virtual ops::Pieces forward_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens);
  std::vector<AuxiliaryLoss> take_auxiliary_losses() override { return {}; }
};

// Creates the feed-forward part of layer `layer` (counted from 0), so that only some layers have experts.
using FeedForwardFactory = std::function<std::shared_ptr<FeedForward>(int64_t layer)>;

// down(gelu(up(x))) without biases and with the exact (erf) GELU. Submodules: up (inner, width) and down (width,
// inner).
class GeluFeedForward : public FeedForward {
 public:
  GeluFeedForward(int64_t width, int64_t inner, at::Device device);

  at::Tensor forward(const at::Tensor& x) override;

 private:
  std::shared_ptr<Linear> up_, down_;
};

struct SwigluForm {
  bool gelu = false;    // the tanh approximation of GELU in place of silu
  bool joined = false;  // adapters see gate_up_proj as one layer
  Cut cut = {};         // `inner` is that of this part; results are then partial sums
};

// down_proj(silu(gate) * up) with [gate, up] = gate_up_proj(x) and any inner width. Submodules: gate_up_proj (2 inner,
// width) and down_proj (width, inner). The kernels with the gate in a product's epilogue are for silu alone.
class SwigluFeedForward : public FeedForward, public HasAdaptableLinears {
 public:
  SwigluFeedForward(int64_t width, int64_t inner, at::Device device, WeightFormat format = WeightFormat::f32,
                    const SwigluForm& form = {});

  at::Tensor forward(const at::Tensor& x) override;
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual) override;
  at::Tensor normed_add(const RmsNorm& norm, const at::Tensor& x) override;
  StepRows step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm* next) override;
  at::Tensor step_sums(const RmsNorm& norm, const StepRows& rows) override;
  ops::Pieces forward_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens) override;

  // Parts: gate_proj and up_proj of gate_up_proj, or with `joined` that itself; down_proj.
  std::vector<AdaptableLinear> adaptable_linears() override;

  const Linear& gate_up_proj() const { return *gate_up_proj_; }
  const Linear& down_proj() const { return *down_proj_; }
  bool gelu() const { return form_.gelu; }

 private:
  bool needs_forward() const;  // true if either layer needs it, or the gate
  at::Tensor gated(const at::Tensor& gate_up) const;

  SwigluForm form_;
  std::shared_ptr<Linear> gate_up_proj_, down_proj_;
};

// Collects take_auxiliary_losses() from every submodule of `module` that has it, in module-tree order.
std::vector<AuxiliaryLoss> take_auxiliary_losses(const torch::nn::Module& module);

}  // namespace hrm::nn
