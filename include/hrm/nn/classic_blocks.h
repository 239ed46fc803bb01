#pragma once
// The blocks of a Transformer as torch.nn builds it: LayerNorm, biased attention, sinusoidal positions. Parameter names
// are those of torch.nn. Shapes: B rows, T positions, D width.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "hrm/nn/feed_forward.h"
#include "hrm/nn/multihead_attention.h"
#include "hrm/nn/norm.h"

namespace hrm::nn {

inline constexpr double kLayerNormEps = 1e-5;

// sin in even columns, cos in odd ones, of position * 10000^(-column/D), (positions, D) float32 (Vaswani et al., arXiv
// 1706.03762). Error(usage) when D is odd.
at::Tensor sinusoidal_positions(int64_t positions, int64_t width, at::Device device);

// Pre-norm: x += attn(norm1(x)); x += ffn(norm2(x)).
class ClassicEncoderBlock : public torch::nn::Module {
 public:
  ClassicEncoderBlock(int64_t width, int64_t heads, std::shared_ptr<FeedForward> ffn, at::Device device);

  // key_mask as in MultiheadAttention::forward.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_mask) const;  // (B, T, D) -> (B, T, D)

 private:
  std::shared_ptr<LayerNorm> norm1_, norm2_;
  std::shared_ptr<MultiheadAttention> attn_;
  std::shared_ptr<FeedForward> ffn_;
};

// Submodules layers.0, layers.1, ... and norm: norm(blocks(x)).
class ClassicEncoder : public torch::nn::Module {
 public:
  // `feed_forward` empty: GELU of 4 D in every layer.
  ClassicEncoder(int64_t layers, int64_t width, int64_t heads, const FeedForwardFactory& feed_forward,
                 at::Device device);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_mask = {}) const;

 private:
  std::vector<std::shared_ptr<ClassicEncoderBlock>> layers_;
  std::shared_ptr<LayerNorm> norm_;
};

// Post-norm: x = norm1(x + self_attn(x)), causal; x = norm2(x + multihead_attn(x, memory)); x = norm3(x + linear2(
// relu(linear1(x)))), with biases, 4 D wide.
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
