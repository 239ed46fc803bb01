#include "hrm/nn/feed_forward.h"

#include <ATen/ATen.h>

#include <iterator>

#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/swiglu.h"

namespace hrm::nn {

GeluFeedForward::GeluFeedForward(int64_t width, int64_t inner, at::Device device) {
  up_ = register_module("up", std::make_shared<Linear>(width, inner, device));
  down_ = register_module("down", std::make_shared<Linear>(inner, width, device));
}

at::Tensor GeluFeedForward::forward(const at::Tensor& x) {
  return down_->forward(at::gelu(up_->forward(x)));
}

SwigluFeedForward::SwigluFeedForward(int64_t width, int64_t inner, at::Device device) {
  gate_up_proj_ = register_module("gate_up_proj", std::make_shared<Linear>(width, 2 * inner, device));
  down_proj_ = register_module("down_proj", std::make_shared<Linear>(inner, width, device));
}

at::Tensor SwigluFeedForward::forward(const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) {
    return down_proj_->forward(ops::linear_swiglu(x, gate_up_proj_->compute_weight()));
  }
  return down_proj_->forward(ops::swiglu(gate_up_proj_->forward(x)));
}

std::vector<AuxiliaryLoss> take_auxiliary_losses(const torch::nn::Module& module) {
  std::vector<AuxiliaryLoss> losses;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* part = dynamic_cast<HasAuxiliaryLosses*>(child.get())) {
      std::vector<AuxiliaryLoss> taken = part->take_auxiliary_losses();
      losses.insert(losses.end(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
    }
  }
  return losses;
}

}  // namespace hrm::nn
