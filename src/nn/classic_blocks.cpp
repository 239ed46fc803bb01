#include "hrm/nn/classic_blocks.h"

#include <ATen/ATen.h>

#include <cmath>

#include "hrm/base/error.h"

namespace hrm::nn {

at::Tensor sinusoidal_positions(int64_t positions, int64_t width, at::Device device) {
  require(width % 2 == 0, ExitCode::usage, "sinusoidal positions need an even width, but ", width, " is odd");
  const at::Tensor column = at::arange(0, width, 2, at::kFloat);
  const at::Tensor frequency = at::exp(column * (-std::log(10000.0) / static_cast<double>(width)));
  const at::Tensor angle = at::outer(at::arange(positions, at::kFloat), frequency);
  return at::stack({angle.sin(), angle.cos()}, -1).flatten(-2).to(device);
}

ClassicEncoderBlock::ClassicEncoderBlock(int64_t width, int64_t heads, std::shared_ptr<FeedForward> ffn,
                                         at::Device device) {
  norm1_ = register_module("norm1", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
  attn_ = register_module("attn", std::make_shared<MultiheadAttention>(width, heads, device));
  norm2_ = register_module("norm2", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
  ffn_ = register_module("ffn", std::move(ffn));
}

at::Tensor ClassicEncoderBlock::forward(const at::Tensor& x, const at::Tensor& key_mask) const {
  const at::Tensor h = x + attn_->forward(norm1_->forward(x), key_mask, /*causal=*/false);
  return h + ffn_->forward(norm2_->forward(h).reshape({-1, h.size(-1)})).view(h.sizes());
}

ClassicEncoder::ClassicEncoder(int64_t layers, int64_t width, int64_t heads, const FeedForwardFactory& feed_forward,
                               at::Device device) {
  const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < layers; ++i) {
    std::shared_ptr<FeedForward> ffn =
        feed_forward ? feed_forward(i) : std::make_shared<GeluFeedForward>(width, 4 * width, device);
    layers_.push_back(list->register_module(
        std::to_string(i), std::make_shared<ClassicEncoderBlock>(width, heads, std::move(ffn), device)));
  }
  norm_ = register_module("norm", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
}

at::Tensor ClassicEncoder::forward(const at::Tensor& x, const at::Tensor& key_mask) const {
  at::Tensor h = x;
  for (const auto& layer : layers_) h = layer->forward(h, key_mask);
  return norm_->forward(h);
}

ClassicDecoderBlock::ClassicDecoderBlock(int64_t width, int64_t heads, at::Device device) {
  self_attn_ = register_module("self_attn", std::make_shared<MultiheadAttention>(width, heads, device));
  multihead_attn_ = register_module("multihead_attn", std::make_shared<MultiheadAttention>(width, heads, device));
  linear1_ = register_module("linear1", std::make_shared<Linear>(width, 4 * width, device, /*bias=*/true));
  linear2_ = register_module("linear2", std::make_shared<Linear>(4 * width, width, device, /*bias=*/true));
  norm1_ = register_module("norm1", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
  norm2_ = register_module("norm2", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
  norm3_ = register_module("norm3", std::make_shared<LayerNorm>(width, kLayerNormEps, device));
}

at::Tensor ClassicDecoderBlock::forward(const at::Tensor& x, const at::Tensor& memory) const {
  at::Tensor h = norm1_->forward(x + self_attn_->forward(x, {}, /*causal=*/true));
  h = norm2_->forward(h + multihead_attn_->cross(h, memory));
  return norm3_->forward(h + linear2_->forward(at::relu(linear1_->forward(h))));
}

}  // namespace hrm::nn
