#include "hrm/nn/linear.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"

namespace hrm::nn {

Linear::Linear(int64_t in, int64_t out, at::Device device, bool bias, WeightFormat format)
    : device_(device), format_(format) {
  const bool nf4 = format == WeightFormat::nf4;
  weight_ = register_parameter("weight", at::empty({out, in}, at::device(nf4 ? at::Device(at::kMeta) : device)),
                               /*requires_grad=*/!nf4);
  if (bias) bias_ = register_parameter("bias", at::empty({out}, at::device(device)));
  compute_weight_ = weight_;
}

void Linear::hold_frozen(at::ScalarType dtype) {
  weight_.set_requires_grad(false);
  weight_.set_data(at::empty(weight_.sizes(), weight_.options().dtype(dtype)));
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  const auto with_bias = [&](const at::Tensor& y) { return bias_.defined() ? y + bias_.to(y.scalar_type()) : y; };
  if (const LoraAdapter* lora = adapter()) return with_bias(lora->forward(x, frozen_weight()));
  if (format_ == WeightFormat::nf4) return with_bias(frozen_linear(x, frozen_weight()));
  if (const Fp8Layer* layer = fp8()) return with_bias(layer->forward(x, compute_weight_, weight_));
  return ops::linear(x, compute_weight(), weight_, bias_);
}

at::Tensor Linear::forward_add(const at::Tensor& x, const at::Tensor& residual) const {
  if (bias_.defined() || fp8() != nullptr) return residual + forward(x);
  if (const LoraAdapter* lora = adapter()) return lora->forward(x, frozen_weight(), residual);
  if (format_ == WeightFormat::nf4) return frozen_linear(x, frozen_weight(), residual);
  return ops::linear_add(x, compute_weight(), weight_, residual);
}

const Fp8Layer* Linear::fp8() const {
  return fp8_ && fp8_->runs() ? fp8_.get() : nullptr;
}

const at::Tensor& Linear::compute_weight() const {
  require(format_ != WeightFormat::nf4, ExitCode::unexpected,
          "an NF4 layer has no compute weight; use forward() or frozen_weight()");
  return lora_ && lora_->merged() ? lora_->merged_weight() : compute_weight_;
}

void Linear::attach(std::shared_ptr<LoraAdapter> adapter) {
  require(!lora_, ExitCode::unexpected, "a linear layer accepts only one adapter");
  lora_ = register_module("lora", std::move(adapter));
}

void Linear::hold_nf4(const at::Tensor& weight, const std::string& name) {
  require(format_ == WeightFormat::nf4 && weight.sizes() == weight_.sizes(), ExitCode::unexpected, "'", name,
          "' has the wrong shape, or its layer was not built with WeightFormat::nf4");
  const at::NoGradGuard no_grad;
  nf4_ = ops::nf4_quantize(weight.to(device_));
  // A magnitude that is not finite makes their mean non-finite.
  require(std::isfinite(nf4_.offset.item<float>()), ExitCode::checkpoint, "'", name,
          "' contains values that are not finite, which NF4 cannot store; set hf.quantize to none");
}

const LoraAdapter* Linear::adapter() const {
  return lora_ && lora_->active() ? lora_.get() : nullptr;
}

}  // namespace hrm::nn
