#include "hrm/nn/linear.h"

#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"

namespace hrm::nn {

Linear::Linear(int64_t in, int64_t out, at::Device device, bool bias) {
  weight_ = register_parameter("weight", at::empty({out, in}, at::device(device)));
  if (bias) bias_ = register_parameter("bias", at::empty({out}, at::device(device)));
  compute_weight_ = weight_;
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  if (const LoraAdapter* lora = adapter()) return lora->forward(x, compute_weight_);
  return ops::linear(x, compute_weight(), weight_, bias_);
}

at::Tensor Linear::forward_add(const at::Tensor& x, const at::Tensor& residual) const {
  require(!bias_.defined(), ExitCode::unexpected, "a layer with a bias adds no residual");
  if (const LoraAdapter* lora = adapter()) return lora->forward(x, compute_weight_, residual);
  return ops::linear_add(x, compute_weight(), weight_, residual);
}

const at::Tensor& Linear::compute_weight() const {
  return lora_ && lora_->merged() ? lora_->merged_weight() : compute_weight_;
}

void Linear::attach(std::shared_ptr<LoraAdapter> adapter) {
  require(!lora_ && !bias_.defined(), ExitCode::unexpected, "a layer takes one adapter, and none beside a bias");
  lora_ = register_module("lora", std::move(adapter));
}

const LoraAdapter* Linear::adapter() const {
  return lora_ && lora_->active() ? lora_.get() : nullptr;
}

}  // namespace hrm::nn
