#pragma once
// Transformer blocks as in torch.nn: LayerNorm, attention with biases, sinusoidal positions. Parameter names match
// torch.nn. Shapes: B rows, T positions, D width.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "hrm/nn/feed_forward.h"
#include "hrm/nn/multihead_attention.h"
#include "hrm/nn/norm.h"

namespace hrm::nn {

inline constexpr double kLayerNormEps = 1e-5;

// The sinusoidal table of Vaswani et al. (arXiv 1706.03762), (positions, D) float32. With angle = position *
// 10000^(-column/D), even columns hold the sine and odd ones the cosine. Throws Error(usage) if D is odd.
at::Tensor sinusoidal_positions(int64_t positions, int64_t width, at::Device device);

// Pre-norm: x += attn(norm1(x)); x += ffn(norm2(x)).
class ClassicEncoderBlock : public torch::nn::Module {
 public:
  ClassicEncoderBlock(int64_t width, int64_t heads, std::shared_ptr<FeedForward> ffn, at::Device device);

  // key_mask: see MultiheadAttention::forward.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_mask) const;  // (B, T, D) -> (B, T, D)

 private:
  std::shared_ptr<LayerNorm> norm1_, norm2_;
  std::shared_ptr<MultiheadAttention> attn_;
  std::shared_ptr<FeedForward> ffn_;
};

// norm(blocks(x)). Submodules: layers.0, layers.1, ... and norm.
class ClassicEncoder : public torch::nn::Module {
 public:
  // If `feed_forward` is empty, every layer uses GELU with an inner width of 4 D.
  ClassicEncoder(int64_t layers, int64_t width, int64_t heads, const FeedForwardFactory& feed_forward,
                 at::Device device);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_mask = {}) const;

 private:
  std::vector<std::shared_ptr<ClassicEncoderBlock>> layers_;
  std::shared_ptr<LayerNorm> norm_;
};

// Post-norm: x = norm1(x + self_attn(x)) with causal attention; x = norm2(x + multihead_attn(x, memory)); x = norm3(x +
// linear2(relu(linear1(x)))). The linear layers have biases; the inner width is 4 D.
class ClassicDecoderBlock : public torch::nn::Module {
 public:
  ClassicDecoderBlock(int64_t width, int64_t heads, at::Device device);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory) const;  // memory (B, P, D)

 private:
  std::shared_ptr<MultiheadAttention> self_attn_, multihead_attn_;
  std::shared_ptr<Linear> linear1_, linear2_;
  std::shared_ptr<LayerNorm> norm1_, norm2_, norm3_;
};

}  // namespace hrm::nn
