#include "hrm/nn/fp8.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/nn/block.h"
#include "hrm/ops/fp8.h"

namespace hrm::nn {

std::vector<const Linear*> fp8_weights(const ReasoningModule& level) {
  std::vector<const Linear*> weights;
  for (const auto& block : level.layers()) {
    if (block->attention()) {
      weights.push_back(&block->attention()->qkv_proj());
      weights.push_back(&block->attention()->o_proj());
    }
    weights.push_back(&block->mlp().gate_up_proj());
    weights.push_back(&block->mlp().down_proj());
  }
  return weights;
}

Fp8Recursions::Fp8Recursions(torch::nn::Module& model, int64_t history, double margin) : margin_(margin) {
  const at::NoGradGuard no_grad;
  std::vector<ReasoningModule*> modules;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* level = dynamic_cast<ReasoningModule*>(module.get())) modules.push_back(level);
  }
  require(!modules.empty(), ExitCode::unexpected,
          "fp8 recursions need a model with recurrent modules, and this one has none");
  for (const ReasoningModule* module : modules) {
    for (const auto& block : module->layers()) {
      require(block->mlp().dwconv() == nullptr, ExitCode::unexpected,
              "fp8 recursions have no kernel for blocks with a convolution; do not enable them for this model");
    }
  }
  // The activation slots come after the weights' slots. Each weight has one input, so both have the same number.
  for (const ReasoningModule* module : modules) {
    for (const Linear* weight : fp8_weights(*module)) weights_.push_back(weight);
  }
  const at::Device device = weights_.front()->weight().device();
  slots_ = ops::make_fp8_slots(2 * weights(), device);
  history_ = at::zeros({slots_.size(0), history}, slots_.options());
  for (const Linear* weight : weights_) {
    copies_.push_back(at::empty(weight->weight().sizes(), slots_.options().dtype(at::kFloat8_e4m3fn)));
  }

  int64_t next_weight = 0, next_slot = weights();
  const auto weight = [&] {
    const int64_t i = next_weight++;
    return Fp8Weight{copies_[static_cast<size_t>(i)], slots_.select(0, i)};
  };
  const auto slot = [&] { return slots_.select(0, next_slot++); };
  for (ReasoningModule* module : modules) {
    const auto level = std::make_shared<Fp8Level>();
    for (const auto& layer : module->layers()) {
      Fp8Block block;
      if (layer->attention()) {
        // The input of a block is the output of the previous one.
        (level->blocks.empty() ? level->input : level->blocks.back().output) = slot();
        block.qkv = weight();
        block.o = weight();
        block.mixed = slot();
      }
      block.gate_up = weight();
      block.down = weight();
      block.half = slot();
      block.act = slot();
      level->blocks.push_back(block);
    }
    module->set_fp8(level);
    levels_.push_back(level);
  }
}

void Fp8Recursions::set_active(bool active) {
  active_ = active;
  for (const auto& level : levels_) level->active = active;
}

void Fp8Recursions::quantize_weights() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> from;
  for (const Linear* weight : weights_) from.push_back(weight->compute_weight().detach());
  ops::quantize_fp8_(from, copies_, slots_.narrow(0, 0, weights()));
}

void Fp8Recursions::update_scales() const {
  const at::NoGradGuard no_grad;
  ops::fp8_update_scales_(slots_, history_, margin_);
}

void Fp8Recursions::calibrate_weights() const {
  quantize_weights();
  update_scales();
}

void Fp8Recursions::forget_scales() {
  const at::NoGradGuard no_grad;
  slots_.copy_(ops::make_fp8_slots(slots_.size(0), slots_.device()));
  history_.zero_();
  steps_ = 0;
}

void Fp8Recursions::visit_state(StateVisitor& visitor) {
  visitor.tensor("fp8.slots", slots_, StateRole::loop);
  visitor.tensor("fp8.history", history_, StateRole::loop);
  visitor.integer("fp8.steps", steps_);
}

Fp8Evaluation::Fp8Evaluation(Fp8Recursions* fp8) : fp8_(fp8 && fp8->active() ? fp8 : nullptr) {
  if (!fp8_) return;
  slots_ = fp8_->slots().clone();
  fp8_->quantize_weights();
  fp8_->evaluating_ = true;
}

Fp8Evaluation::~Fp8Evaluation() {
  if (!fp8_) return;
  fp8_->evaluating_ = false;
  // A destructor must not throw. If the device fails here, the next operation reports it.
  try {
    const at::NoGradGuard no_grad;
    fp8_->slots_.copy_(slots_);
  } catch (const std::exception& error) {
    log::error("the fp8 scales could not be put back after an evaluation: ", error.what());
  }
}

}  // namespace hrm::nn
