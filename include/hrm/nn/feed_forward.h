#pragma once
// The feed-forward part of a language model's block, behind one interface so that dense layers and mixtures of experts
// can be exchanged.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hrm/nn/linear.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/norm.h"
#include "hrm/nn/step_rows.h"

namespace hrm::nn {

// A term that a layer adds to the loss beside its output, e.g. the load of experts.
struct AuxiliaryLoss {
  std::string name;   // "moe_load"
  at::Tensor value;   // 0-dim float32, differentiable
  double weight = 0;  // the loss gets weight * value
};

class HasAuxiliaryLosses {
 public:
  virtual ~HasAuxiliaryLosses() = default;
  // The losses of all recorded calls of forward() since the last call of this, one or more for each. Calls without
  // gradient mode leave none.
  virtual std::vector<AuxiliaryLoss> take_auxiliary_losses() = 0;
};

class FeedForward : public torch::nn::Module, public HasAuxiliaryLosses {
 public:
  // (tokens, D) in the compute dtype -> the same. Recorded where gradients are. Reads nothing back to the host.
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  // residual + forward(x), by fewer passes over memory where a layer can.
  virtual at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual);
  // x + forward(norm(x)) without gradient: a decoding step, by fewer kernels where a layer can. next: the norm that the
  // result goes through, or null; see StepRows.
  virtual StepRows step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm* next);
  std::vector<AuxiliaryLoss> take_auxiliary_losses() override { return {}; }
};

// Makes the feed-forward part of layer `layer`, counted from 0: how a model gets experts in some of its layers.
using FeedForwardFactory = std::function<std::shared_ptr<FeedForward>(int64_t layer)>;

// down(gelu(up(x))) without biases, gelu exact (erf). Submodules up (inner, width) and down (width, inner).
class GeluFeedForward : public FeedForward {
 public:
  GeluFeedForward(int64_t width, int64_t inner, at::Device device);

  at::Tensor forward(const at::Tensor& x) override;

 private:
  std::shared_ptr<Linear> up_, down_;
};

// down_proj(silu(gate) * up), [gate, up] = gate_up_proj(x), of any inner width. Submodules gate_up_proj (2 inner,
// width) and down_proj (width, inner).
class SwigluFeedForward : public FeedForward, public HasAdaptableLinears {
 public:
  SwigluFeedForward(int64_t width, int64_t inner, at::Device device, WeightFormat format = WeightFormat::f32);

  at::Tensor forward(const at::Tensor& x) override;
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual) override;
  StepRows step_add(const RmsNorm& norm, const StepRows& rows, const RmsNorm* next) override;

  // gate_up_proj: gate_proj, up_proj; down_proj.
  std::vector<AdaptableLinear> adaptable_linears() override;

  const Linear& gate_up_proj() const { return *gate_up_proj_; }
  const Linear& down_proj() const { return *down_proj_; }

 private:
  bool needs_forward() const;  // of either layer

  std::shared_ptr<Linear> gate_up_proj_, down_proj_;
};

// take_auxiliary_losses() of every part below `module` that has it, in the order of the module tree.
std::vector<AuxiliaryLoss> take_auxiliary_losses(const torch::nn::Module& module);

}  // namespace hrm::nn
