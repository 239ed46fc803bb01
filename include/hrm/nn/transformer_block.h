#pragma once
// The pre-norm block of today's language models: RMSNorm, rotary attention with grouped heads, SwiGLU (as in Llama and
// Qwen3). Shapes: B rows, T positions, D width.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "hrm/nn/causal_attention.h"
#include "hrm/nn/feed_forward.h"
#include "hrm/nn/gradient_ready.h"

namespace hrm::nn {

struct TransformerBlockOptions {
  AttentionSizes attention;
  double eps = 1e-6;
  bool cross = false;                        // attends to a memory between attention and feed-forward
  bool recompute = false;                    // keeps its input alone for the backward pass
  WeightFormat weights = WeightFormat::f32;  // of the attention's linear layers
};

// x += self_attn(input_layernorm(x)); x += cross_attn(cross_layernorm(x)); x += mlp(post_attention_layernorm(x)).
class TransformerBlock : public torch::nn::Module, public HasGradientGroup, public HasAuxiliaryLosses {
 public:
  TransformerBlock(const TransformerBlockOptions& options, std::shared_ptr<FeedForward> mlp, at::Device device);

  // memory: what project_memory() gave, with options.cross; cache: see CausalAttention::forward_add.
  at::Tensor forward(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory = nullptr,
                     LayerCache* cache = nullptr);  // (B, T, D) -> (B, T, D)
  // A decoding step, without gradient: see CausalAttention::step_add. next: the block after this one, or null.
  StepRows step(const StepRows& rows, const AttentionPass& pass, const LayerCache* memory, const LayerCache& cache,
                const TransformerBlock* next);
  // For all passes over one memory. A use of the block's parameters of its own, which the backward pass comes through
  // after those of forward().
  LayerCache project_memory(const at::Tensor& memory) const;

  // The parts, where the block is self-attention with as many heads of keys as of queries and a SwiGLU; q_norm and
  // k_norm may be null.
  struct PlainParts {
    const RmsNorm *input_norm, *mlp_norm, *q_norm, *k_norm;
    const Linear *qkv_proj, *o_proj, *gate_up_proj, *down_proj;
    int64_t heads;
    double eps;      // of all norms
    bool recompute;  // as in the options
  };
  std::optional<PlainParts> plain_parts() const;
  // For whoever uses the parts instead of forward(): GradientReady::mark() of the input.
  at::Tensor mark_use(const at::Tensor& input) const;

  std::vector<AuxiliaryLoss> take_auxiliary_losses() override;
  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    gradient_ready_ = std::move(ready);
    gradient_group_ = group;
  }

 private:
  at::Tensor compute(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory, LayerCache* cache);
  at::Tensor compute_again_later(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory);
  at::Tensor trained_parameter() const;  // one that requires a gradient, where there is one
  std::shared_ptr<LoraShared> adapters() const;

  TransformerBlockOptions options_;
  std::shared_ptr<RmsNorm> input_norm_, cross_norm_, mlp_norm_;
  std::shared_ptr<CausalAttention> self_attn_;
  std::shared_ptr<CrossAttention> cross_attn_;
  std::shared_ptr<FeedForward> mlp_;
  std::vector<AuxiliaryLoss> losses_;              // of recomputed passes, which mlp_ no longer has
  std::shared_ptr<GradientReady> gradient_ready_;  // null without a ParameterSet
  int gradient_group_ = GradientReady::kNoGroup;
};

}  // namespace hrm::nn
