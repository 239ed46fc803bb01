#pragma once
// A causal decoder: embedding, blocks, norm, head. It is the whole of the plain language model and the decoder
// of the HRM-LM. Shapes: B rows, T tokens, P prefix vectors, D width, S positions in a cache.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/formats/hf_family.h"
#include "hrm/nn/across.h"
#include "hrm/nn/cut.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/init.h"
#include "hrm/nn/lm_head.h"
#include "hrm/nn/moe.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::models {

struct DecoderOptions {
  int64_t vocabulary = 0, width = 0, layers = 0, heads = 0;
  int64_t kv_heads = 0;      // 0: same as heads
  int64_t head_dim = 0;      // 0: width / heads
  int64_t inner = 0;         // inner width of the SwiGLU; 0: nn::swiglu_width(width, 4)
  int64_t positions = 2048;  // maximum row length, prefix included
  int64_t window = 0;        // a position attends to itself and window - 1 before it; 0: to all before it
  double rope_theta = 10000, eps = 1e-6;
  RopeScaling rope = {};
  DecoderForm form = {};        // where blocks differ from those of Llama; not with cross or other feed-forward layers
  DecoderExperts experts = {};  // mixtures of experts in the layers that have() them; likewise
  // The dtype of their weights from the start. Other than float32 only for a model whose experts are never trained,
  // so that loading it takes half the memory.
  at::ScalarType expert_dtype = at::kFloat;
  bool qk_norm = false;
  bool tied = true;                                  // the head shares the embedding's weight
  bool recompute = false;                            // activation checkpointing of every block
  nn::WeightFormat weights = nn::WeightFormat::f32;  // of the blocks' linear layers; nf4 only with SwiGLU
  nn::FeedForwardFactory feed_forward = {};          // empty: SwiGLU in every layer
  // If not null, this process holds the part across->cut() of the decoder; all sizes above are those of the whole.
  std::shared_ptr<const nn::TensorAcross> across = nullptr;
};
// Replaces zeros by their defaults. Throws Error(usage) for contradictory values, and for a decoder that cannot be cut
// into that many parts.
DecoderOptions resolve(DecoderOptions options);

// The mixtures of experts that `experts` describes.
nn::MoeOptions expert_options(const DecoderOptions& options);

using TransformerBlocks = std::vector<std::shared_ptr<nn::TransformerBlock>>;
// Registers layers.0, layers.1, ... on `owner`: blocks with these resolved options. `feed_forward` creates the
// feed-forward part of each block; empty: a SwiGLU.
TransformerBlocks add_blocks(torch::nn::Module& owner, int64_t layers, const DecoderOptions& options, bool cross,
                             const nn::FeedForwardFactory& feed_forward, at::Device device);

// The decoding state. Tensors keep their addresses; those of `memory` only until the next prefill.
struct DecodeCache {
  std::vector<nn::LayerCache> layers;  // (B, Hkv, P, hd) each: P = S places, or those of the window if it is less
  std::vector<nn::LayerCache> memory;  // of the memory that blocks attend to; empty if there is none
  at::Tensor lengths;                  // (B) int64, positions that each row has had, its prefix included
  int64_t capacity = 0;                // S
};

// With options.across every part gets the same inputs and gives the same hidden states, of all tokens. The gradient
// that a part gives to hidden states is a partial sum, as that of a cut head is.
class Decoder : public torch::nn::Module, public nn::HasOwnInit, public nn::HasPartialGradients {
 public:
  // cross: blocks attend to a memory, which every pass must then provide.
  Decoder(const DecoderOptions& options, bool cross, at::Device device);

  // ids (B, T) -> hidden states (B, T, D) in `dtype`, after the norm. `documents`, `most_documents`: see
  // LanguageInputs. `prefix`: (B, P, D) in `dtype`, vectors before the tokens, or undefined. `memory`: (B, M, D), only
  // with cross.
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& documents = {},
                     const at::Tensor& prefix = {}, const at::Tensor& memory = {}, int64_t most_documents = 0);
  // With prefix sharing, without cross: ids (1, U) -> (1, U, D).
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype, const nn::SharedTokens& shared);

  // Decoding, without gradient. `capacity` S: the maximum number of positions per row, prefix included. With a window
  // the cache holds no more than its positions.
  DecodeCache make_cache(int64_t rows, int64_t capacity, at::ScalarType dtype) const;
  // As forward(), and fills the cache. `lengths`: (B) integer, the number of tokens in each row; the rest is padding,
  // whose hidden states are meaningless.
  at::Tensor prefill(const at::Tensor& ids, const at::Tensor& lengths, at::ScalarType dtype, DecodeCache& cache,
                     const at::Tensor& prefix = {}, const at::Tensor& memory = {});
  // One more token per row: ids (B) -> hidden states (B, D), equal to those of forward() at that position. Reads and
  // writes the cache only on the device, so it can be captured. The caller ensures that no row exceeds `capacity`.
  at::Tensor step(const at::Tensor& ids, at::ScalarType dtype, DecodeCache& cache);

  const nn::LmHead& head() const { return *lm_head_; }
  int64_t positions() const { return options_.positions; }
  // Divides the weights of layers that write to the residual stream by sqrt(2 * layers). Its magnitude then does not
  // grow with depth (Radford et al., GPT-2).
  void init_own(uint64_t seed, const std::string& name) override;
  bool has_partial_gradients() const override { return options_.across != nullptr; }

 private:
  // Through blocks and norm. Completes `pass` by what depends on the length.
  at::Tensor run(const at::Tensor& ids, at::ScalarType dtype, nn::AttentionPass pass, const at::Tensor& prefix,
                 const std::vector<nn::LayerCache>& memory, DecodeCache* cache);
  std::vector<nn::LayerCache> project_memory(const at::Tensor& memory) const;
  void check_length(int64_t length) const;
  nn::RotaryTable rotary_rows(int64_t length) const;
  at::Tensor embed(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& prefix = {}) const;
  at::Tensor embed_step(const at::Tensor& ids, at::ScalarType dtype) const;
  at::Tensor scaled(const at::Tensor& h) const;
  at::Tensor normed(const at::Tensor& h, int64_t rows, int64_t positions) const;

  DecoderOptions options_;
  bool cross_;
  nn::RotaryTable rotary_;
  std::shared_ptr<nn::Embedding> embed_tokens_;
  TransformerBlocks layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
  std::shared_ptr<nn::LmHead> lm_head_;
};

}  // namespace hrm::models
