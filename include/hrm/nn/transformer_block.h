#pragma once
// The block of Llama and its relatives: RMSNorm, rotary grouped-query attention, SwiGLU. Shapes: B rows, T positions,
// D width.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "hrm/nn/across.h"
#include "hrm/nn/block_use.h"
#include "hrm/nn/causal_attention.h"
#include "hrm/nn/feed_forward.h"
#include "hrm/nn/gradient_ready.h"

namespace hrm::nn {

struct TransformerBlockOptions {
  AttentionSizes attention;
  double eps = 1e-6;
  bool cross = false;                        // adds attention to a memory between self-attention and feed-forward
  bool recompute = false;                    // activation checkpointing: saves only the block's input
  WeightFormat weights = WeightFormat::f32;  // of the attention's linear layers
  bool norms_behind = false;                 // norms what a layer gives, not what it reads; not with cross
  bool centred_norms = false;                // see RmsNorm
  // If not null, the block is the part across->cut() of a larger one, and its feed-forward gives partial sums. Not with
  // norms_behind.
  std::shared_ptr<const TensorAcross> across = nullptr;
};

// x += self_attn(input_layernorm(x)); x += cross_attn(cross_layernorm(x)); x += mlp(post_attention_layernorm(x)).
// With norms_behind: x += post_attention_layernorm(self_attn(x)); x += post_feedforward_layernorm(mlp(x)).
// With `across`, x of forward() are this part's rows of the residual stream, (k, D). Attention and feed-forward get the
// rows of all and compute this part's heads and inner columns.
class TransformerBlock : public torch::nn::Module,
                         public HasGradientGroup,
                         public HasBlockUse,
                         public HasAuxiliaryLosses {
 public:
  TransformerBlock(const TransformerBlockOptions& options, std::shared_ptr<FeedForward> mlp, at::Device device);

  // memory: the result of project_memory(), required with options.cross. cache: see CausalAttention::forward_add.
  at::Tensor forward(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory = nullptr,
                     LayerCache* cache = nullptr);  // (B, T, D) -> (B, T, D)
  // A decoding step, without gradient: see CausalAttention::step_add. next: the block after this one, or null.
  StepRows step(const StepRows& rows, const AttentionPass& pass, const LayerCache* memory, const LayerCache& cache,
                const TransformerBlock* next);
  // Projects a memory once for all passes over it. This is a separate use of the block's parameters: the backward pass
  // reaches it after those of forward().
  LayerCache project_memory(const at::Tensor& memory) const;

  // The parts of a block of the plain form with plain weights, a SwiGLU, no cross-attention, and as many key heads as
  // query heads.
  // Otherwise nullopt. q_norm and k_norm may be null.
  struct PlainParts {
    const RmsNorm *input_norm, *mlp_norm, *q_norm, *k_norm;
    const Linear *qkv_proj, *o_proj, *gate_up_proj, *down_proj;
    int64_t heads;
    double eps;      // of all norms
    bool recompute;  // as in the options
  };
  std::optional<PlainParts> plain_parts() const;
  // GradientReady::mark() of the input, for callers that use the parts instead of forward().
  at::Tensor mark_use(const at::Tensor& input) const;

  std::vector<AuxiliaryLoss> take_auxiliary_losses() override;
  void set_gradient_group(std::shared_ptr<GradientReady> ready, int group) override {
    gradient_ready_ = std::move(ready);
    gradient_group_ = group;
  }
  void set_block_use(std::shared_ptr<BlockUse> use, int block) override {
    block_use_ = std::move(use);
    block_ = block;
  }

 private:
  at::Tensor compute(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory, LayerCache* cache);
  at::Tensor compute_part(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory, LayerCache* cache);
  StepRows step_part(const StepRows& rows, const AttentionPass& pass, const LayerCache* memory, const LayerCache& cache,
                     const RmsNorm* next);
  at::Tensor add_normed(const at::Tensor& x, const at::Tensor& attended) const;  // the rest of a block of norms_behind
  at::Tensor compute_again_later(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory);
  at::Tensor trained_parameter() const;  // any parameter that requires a gradient, if there is one
  std::shared_ptr<LoraShared> adapters() const;

  TransformerBlockOptions options_;
  std::shared_ptr<RmsNorm> input_norm_, cross_norm_, mlp_norm_;  // with norms_behind those of attention and MLP
  std::shared_ptr<CausalAttention> self_attn_;
  std::shared_ptr<CrossAttention> cross_attn_;
  std::shared_ptr<FeedForward> mlp_;
  std::vector<AuxiliaryLoss> losses_;              // of recomputed passes; mlp_ no longer has them
  std::shared_ptr<GradientReady> gradient_ready_;  // null without a ParameterSet
  int gradient_group_ = GradientReady::kNoGroup;
  std::shared_ptr<BlockUse> block_use_;  // null where the block does not report its uses
  int block_ = -1;
};

}  // namespace hrm::nn
