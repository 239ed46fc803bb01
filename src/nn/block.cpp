#include "hrm/nn/block.h"

#include "hrm/nn/sub_blocks.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/mlp_mix.h"
#include "hrm/ops/rms_norm.h"
#include "ops/common/optional_tensor.h"

namespace hrm::nn {
namespace {

at::Tensor feed_forward(const SwiGLU& mlp, const at::Tensor& h, double eps) {
  if (ops::backend() == ops::Backend::fused) return mlp_sub_block(h, mlp, eps);
  return ops::rms_norm_residual(mlp.forward(h), h, eps);
}

}  // namespace

Block::Block(const BlockSizes& sizes, const RotaryTable& rotary, at::Device device) : eps_(sizes.rms_norm_eps) {
  if (sizes.mlp_t) {
    mlp_t_ = register_module("mlp_t", std::make_shared<SwiGLU>(sizes.positions, sizes.expansion, device));
  } else {
    self_attn_ = register_module("self_attn", std::make_shared<Attention>(sizes.width, sizes.heads, rotary, device));
  }
  mlp_ = register_module("mlp", std::make_shared<SwiGLU>(sizes.width, sizes.expansion, device, sizes.convolution));
}

at::Tensor Block::mix_positions(const at::Tensor& input) const {
  const at::Tensor h = gradient_ready_ ? gradient_ready_->mark(input, gradient_group_) : input;
  if (mlp_t_) {
    // On a CPU, one large GEMM over transposed rows is faster than one GEMM per sample.
    if (ops::backend() == ops::Backend::fused && h.is_cuda()) {
      const Linear& gate_up = mlp_t_->gate_up_proj();
      const Linear& down = mlp_t_->down_proj();
      return ops::mlp_mix(h, gate_up.compute_weight(), down.compute_weight(), gate_up.weight(), down.weight(), eps_);
    }
    const at::Tensor h_t = h.transpose(1, 2).contiguous();  // (B, D, L)
    return ops::rms_norm_residual(mlp_t_->forward(h_t), h_t, eps_).transpose(1, 2).contiguous();
  }
  if (ops::backend() == ops::Backend::fused) return attention_sub_block(h, *self_attn_, eps_);
  return ops::rms_norm_residual(self_attn_->forward(h), h, eps_);
}

at::Tensor Block::forward(const at::Tensor& h) const {
  return feed_forward(*mlp_, mix_positions(h), eps_);
}

at::Tensor Block::forward_add(const at::Tensor& h, const at::Tensor& addend) const {
  const at::NoGradGuard no_grad;
  const at::Tensor mixed = mix_positions(h);
  if (ops::backend() == ops::Backend::fused) return mlp_sub_block_add(mixed, *mlp_, eps_, addend);
  return feed_forward(*mlp_, mixed, eps_) + addend;
}

at::Tensor Block::forward_first(const at::Tensor& h) const {
  const at::Tensor mixed = mlp_t_ || ops::backend() != ops::Backend::fused || at::GradMode::is_enabled()
                               ? mix_positions(h).select(1, 0)
                               : attention_first_position(h, *self_attn_, eps_);
  // Position 0 has none before it, so that a convolution needs no other.
  return feed_forward(*mlp_, mixed.unsqueeze(1).contiguous(), eps_).select(1, 0);
}

std::tuple<at::Tensor, at::Tensor> Block::forward_fp8(const at::Tensor& h, const at::Tensor& h8,
                                                      const at::Tensor& h_slot, const Fp8Block& fp8) const {
  const at::ScalarType dtype = h.scalar_type();
  at::Tensor half, half8;
  if (mlp_t_) {
    half = mix_positions(h);
    half8 = ops::quantize_fp8(half, fp8.half);
  } else {
    const RotaryTable& rotary = self_attn_->rotary();
    const at::Tensor mixed = ops::attention_fp8(ops::linear_fp8(h8, fp8.qkv.values, h_slot, fp8.qkv.slot, dtype),
                                                self_attn_->heads(), rotary.cos, rotary.sin, fp8.mixed);
    std::tie(half, half8) = ops::linear_rms_norm_fp8(mixed, fp8.o.values, fp8.mixed, fp8.o.slot, h, eps_, fp8.half);
  }
  const at::Tensor act = ops::linear_swiglu_fp8(half8, fp8.gate_up.values, fp8.half, fp8.gate_up.slot, fp8.act, dtype);
  const std::optional<at::Tensor> output = ops::optional_tensor(fp8.output);
  return ops::linear_rms_norm_fp8(act, fp8.down.values, fp8.act, fp8.down.slot, half, eps_, output);
}

ReasoningModule::ReasoningModule(int64_t layers, const BlockSizes& sizes, const RotaryTable& rotary, at::Device device,
                                 bool flat) {
  const std::shared_ptr<torch::nn::Module> list =
      flat ? nullptr : register_module("layers", std::make_shared<torch::nn::Module>());
  torch::nn::Module& holder = flat ? *this : *list;
  for (int64_t i = 0; i < layers; ++i) {
    layers_.push_back(holder.register_module(std::to_string(i), std::make_shared<Block>(sizes, rotary, device)));
  }
}

at::Tensor ReasoningModule::forward(const at::Tensor& h, const at::Tensor& injection) const {
  at::Tensor out = h + injection;
  for (const auto& layer : layers_) out = layer->forward(out);
  return out;
}

at::Tensor ReasoningModule::forward_first(const at::Tensor& h, const at::Tensor& injection) const {
  at::Tensor out = h + injection;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) out = layers_[i]->forward(out);
  return layers_.back()->forward_first(out);
}

at::Tensor ReasoningModule::recur(const at::Tensor& h, const at::Tensor& injection, int64_t times) const {
  if (times == 0) return h;
  at::Tensor out = h;
  if (fp8_ && fp8_->active) {
    for (int64_t i = 0; i < times; ++i) out = forward_fp8(out, injection, layers_.size());
    return out;
  }
  // Except in the last pass, the last block's output is only needed in the sum with the injection.
  out = out + injection;
  for (int64_t i = 1; i < times; ++i) {
    for (size_t k = 0; k + 1 < layers_.size(); ++k) out = layers_[k]->forward(out);
    out = layers_.back()->forward_add(out, injection);
  }
  for (const auto& layer : layers_) out = layer->forward(out);
  return out;
}

at::Tensor ReasoningModule::recur_first(const at::Tensor& h, const at::Tensor& injection) const {
  if (!fp8_ || !fp8_->active) return forward_first(h, injection);
  return layers_.back()->forward_first(forward_fp8(h, injection, layers_.size() - 1));
}

at::Tensor ReasoningModule::forward_fp8(const at::Tensor& h, const at::Tensor& injection, size_t layers) const {
  at::Tensor out, out8, slot = fp8_->input;
  if (slot.defined()) {
    std::tie(out, out8) = ops::add_fp8(h, injection, slot);
  } else {
    out = h + injection;
  }
  for (size_t i = 0; i < layers; ++i) {
    const Fp8Block& block = fp8_->blocks[i];
    std::tie(out, out8) = layers_[i]->forward_fp8(out, out8, slot, block);
    slot = block.output;
  }
  return out;
}

}  // namespace hrm::nn
