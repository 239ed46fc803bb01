#pragma once
// Attention of language models: rotary positions, grouped-query attention (Ainslie et al., "GQA", arXiv 2305.13245),
// masks, and a cache for decoding. Shapes: B rows, T positions, D width, hd head width, Hq query heads, Hkv key and
// value heads, S positions in a cache.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hrm/nn/across.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/norm.h"
#include "hrm/nn/rotary.h"
#include "hrm/nn/shared_tokens.h"
#include "hrm/nn/step_rows.h"
#include "hrm/ops/masked_attention.h"
#include "hrm/ops/qkv_heads.h"

namespace hrm::nn {

struct AttentionSizes {
  int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-6;          // of the norms of q and k
  bool qk_norm = false;       // RMSNorm with weight over each head of q and k, before the rotation
  bool wide_qk_norm = false;  // RMSNorm over all heads of q, and over all of k, before the rotation; not with qk_norm
  bool bias = false;          // of q, k and v
  bool joined = false;        // adapters see qkv_proj as one layer
  // heads and kv_heads are those of this part. What o_proj gives are then partial sums. Not with wide_qk_norm.
  Cut cut = {};
};

// Keys and values of one layer, (B, Hkv, S, hd) in the compute dtype: position p at place p mod S, so that a window of
// up to S positions needs no more. Updated in place, so that addresses are stable.
struct LayerCache {
  at::Tensor keys, values;
};

// The inputs that all layers of a pass share.
struct AttentionPass {
  RotaryTable rotary = {};  // (T, hd / 2), or (B, 1, 1, hd / 2) if T is 1; undefined: no rotation
  at::Tensor mask = {};     // bool, broadcasts to (B, Hq, T, keys), true: may attend; undefined: all
  bool causal = true;       // no attention to later positions; only without mask
  // For causal attention without a mask: the sliding window, and the documents of rows, which a decoding step has not.
  ops::AttentionSpans spans = {};
  // For a decoding step, with a cache and T = 1: (B) int64, the index of the new position. rotary then has rows for all
  // positions.
  at::Tensor place = {};
  // For a pass over more positions than its cache has places: (B, S) int64, the position that each place gets.
  at::Tensor cached = {};
  // If defined, hidden states are (1, U, D), one per token that rows share, and T is the length of the longest row.
  SharedTokens shared = {};
  // Only for blocks that are cut, between which each part has its own rows: B and T of the whole, or 1 and U.
  int64_t rows = 0, positions = 0;
};

// Rotates x (..., hd) by rows of a rotary table that broadcast to (..., hd / 2). Dimension i is paired with i + hd / 2.
// Computed in float32, rounded once. Differentiable in x.
at::Tensor rotate_pairs(const at::Tensor& x, const RotaryTable& rows);

// softmax(q k^T / sqrt(hd)) v, using ATen's scaled_dot_product_attention. mask and causal: see AttentionPass.
//    q: (B, Hq, T, hd); k and v: (B, Hkv, S, hd), where Hkv divides Hq; returns (B, Hq, T, hd)
at::Tensor grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                             bool causal);

// Submodules: qkv_proj ((Hq + 2 Hkv) hd, D), rows all heads of q, k, v; o_proj (D, Hq hd); q_norm and k_norm (hd), or
// (Hq hd) and (Hkv hd) if they are wide.
class CausalAttention : public torch::nn::Module, public HasAdaptableLinears {
 public:
  CausalAttention(const AttentionSizes& sizes, at::Device device, WeightFormat format = WeightFormat::f32);

  // residual + attention(x), all (B, T, D), or (1, U, D) with pass.shared. With a cache, the keys and values of these
  // positions are written to it, or those that pass.cached names.
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual, const AttentionPass& pass,
                         LayerCache* cache = nullptr) const;

  // x + attention(norm(x)), likewise, with fewer passes over memory where the layers run in 8 bits.
  at::Tensor normed_add(const RmsNorm& norm, const at::Tensor& x, const AttentionPass& pass,
                        LayerCache* cache = nullptr) const;

  // The same without norm and residual.
  at::Tensor forward(const at::Tensor& x, const AttentionPass& pass, LayerCache* cache = nullptr) const;

  // Of heads that are cut: this part's rows, (k, D), of pass.rows * pass.positions -> every part's partial sums of
  // attention for them, with products beside the exchange.
  ops::Pieces forward_across(const TensorAcross& across, const at::Tensor& rows, const AttentionPass& pass,
                             LayerCache* cache = nullptr) const;

  // A decoding step, without gradient: x + attention(norm(x)), all (B, 1, D). Writes keys and values to the cache at
  // pass.place and attends to the cached positions. next: the norm applied to the result, or null.
  StepRows step_add(const RmsNorm& norm, const StepRows& rows, const AttentionPass& pass, const LayerCache& cache,
                    const RmsNorm* next) const;
  // The same without norm and residual: attention(x).
  at::Tensor step(const at::Tensor& x, const AttentionPass& pass, const LayerCache& cache) const;
  // The same without residual: attention(norm(x)), or this part's partial sums of it.
  at::Tensor step_sums(const RmsNorm& norm, const StepRows& rows, const AttentionPass& pass,
                       const LayerCache& cache) const;

  // Parts: q_proj, k_proj and v_proj of qkv_proj, or with `joined` that itself; o_proj.
  std::vector<AdaptableLinear> adaptable_linears() override;

  const Linear& qkv_proj() const { return *qkv_proj_; }
  const Linear& o_proj() const { return *o_proj_; }
  const RmsNorm* q_norm() const { return q_norm_.get(); }  // null without qk_norm
  const RmsNorm* k_norm() const { return k_norm_.get(); }

 private:
  // x @ qkv_proj, with wide norms of q and k applied.
  at::Tensor project(const at::Tensor& x) const;
  at::Tensor normed_widely(const at::Tensor& qkv) const;
  bool wide() const { return sizes_.wide_qk_norm; }
  // What o_proj reads.
  at::Tensor mix(const at::Tensor& x, const AttentionPass& pass, LayerCache* cache) const;
  at::Tensor mix_projected(const at::Tensor& qkv, const AttentionPass& pass, LayerCache* cache) const;
  // normed_add() of a frozen layer that multiplies rows in 8 bits.
  at::Tensor rows_normed_add(const RmsNorm& norm, const at::Tensor& x, const AttentionPass& pass,
                             LayerCache* cache) const;
  ops::PairedRows step_mix(const at::Tensor& qkv, const AttentionPass& pass, const LayerCache& cache, bool pairs) const;
  at::Tensor attend(const at::Tensor& qkv, const AttentionPass& pass) const;
  at::Tensor attend(const ops::QkvHeads& heads, const AttentionPass& pass, LayerCache* cache) const;
  ops::QkvHeadOptions head_options(const AttentionPass& pass) const;

  AttentionSizes sizes_;
  std::shared_ptr<Linear> qkv_proj_, o_proj_;
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;  // null without qk_norm
};

// Attention to a memory (B, P, D). Submodules: q_proj (Hq hd, D), kv_proj (2 Hkv hd, D), o_proj (D, Hq hd).
class CrossAttention : public torch::nn::Module {
 public:
  CrossAttention(const AttentionSizes& sizes, at::Device device);

  // Keys and values (B, Hkv, P, hd) of the memory, for all passes that attend to it.
  LayerCache project(const at::Tensor& memory) const;
  // Attention of x to the memory, all (B, T, D), or this part's partial sums of it.
  at::Tensor forward(const at::Tensor& x, const LayerCache& memory) const;
  // residual + attention of x to the memory, all (B, T, D).
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual, const LayerCache& memory) const;

 private:
  at::Tensor mix(const at::Tensor& x, const LayerCache& memory) const;

  AttentionSizes sizes_;
  std::shared_ptr<Linear> q_proj_, kv_proj_, o_proj_;
};

}  // namespace hrm::nn
