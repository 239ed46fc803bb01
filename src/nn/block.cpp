#include "hrm/nn/block.h"

#include "hrm/ops/rms_norm.h"

namespace hrm::nn {

Block::Block(const BlockSizes& sizes, const RotaryTable& rotary, at::Device device) : eps_(sizes.rms_norm_eps) {
  if (sizes.mlp_t) {
    mlp_t_ = register_module("mlp_t", std::make_shared<SwiGLU>(sizes.positions, sizes.expansion, device));
  } else {
    self_attn_ = register_module("self_attn", std::make_shared<Attention>(sizes.width, sizes.heads, rotary, device));
  }
  mlp_ = register_module("mlp", std::make_shared<SwiGLU>(sizes.width, sizes.expansion, device));
}

at::Tensor Block::forward(at::Tensor h) const {
  if (mlp_t_) {
    const at::Tensor h_t = h.transpose(1, 2).contiguous();  // (B, D, L)
    h = ops::rms_norm_residual(mlp_t_->forward(h_t), h_t, eps_).transpose(1, 2).contiguous();
  } else {
    h = ops::rms_norm_residual(self_attn_->forward(h), h, eps_);
  }
  return ops::rms_norm_residual(mlp_->forward(h), h, eps_);
}

ReasoningModule::ReasoningModule(int64_t layers, const BlockSizes& sizes, const RotaryTable& rotary,
                                 at::Device device) {
  const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < layers; ++i) {
    layers_.push_back(list->register_module(std::to_string(i), std::make_shared<Block>(sizes, rotary, device)));
  }
}

at::Tensor ReasoningModule::forward(const at::Tensor& h, const at::Tensor& injection) const {
  at::Tensor out = h + injection;
  for (const auto& layer : layers_) out = layer->forward(out);
  return out;
}

}  // namespace hrm::nn
