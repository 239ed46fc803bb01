#pragma once
// A causal decoder: embedding, pre-norm blocks, norm, head; the whole of the plain language model, and the answering
// part of the HRM language model. Shapes: B rows, T tokens, P prefix vectors, D width, S positions in a cache.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/embedding.h"
#include "hrm/nn/init.h"
#include "hrm/nn/lm_head.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::models {

struct DecoderOptions {
  int64_t vocabulary = 0, width = 0, layers = 0, heads = 0;
  int64_t kv_heads = 0;      // 0: as many as heads
  int64_t head_dim = 0;      // 0: width / heads
  int64_t inner = 0;         // of the SwiGLU; 0: nn::swiglu_width(width, 4)
  int64_t positions = 2048;  // the longest row, prefix included
  int64_t window = 0;        // a position sees itself and window - 1 before it; 0: all before it
  double rope_theta = 10000, eps = 1e-6;
  bool qk_norm = false;
  bool tied = true;                                  // the head reads the embedding's weight
  bool recompute = false;                            // activation checkpointing of every block
  nn::WeightFormat weights = nn::WeightFormat::f32;  // of the blocks' linear layers; nf4 with SwiGLU alone
  nn::FeedForwardFactory feed_forward = {};          // empty: SwiGLU in every layer
};
// Fills in the zeros that stand for a default. Error(usage) where values contradict each other.
DecoderOptions resolve(DecoderOptions options);

using TransformerBlocks = std::vector<std::shared_ptr<nn::TransformerBlock>>;
// Registers layers.0, layers.1, ... with `owner`: blocks of resolved options. `feed_forward` makes the feed-forward
// part of each; empty: a SwiGLU.
TransformerBlocks add_blocks(torch::nn::Module& owner, int64_t layers, const DecoderOptions& options, bool cross,
                             const nn::FeedForwardFactory& feed_forward, at::Device device);

// What decoding keeps of the positions that it has seen. Tensors keep their addresses, those of `memory` until the next
// prefill.
struct DecodeCache {
  std::vector<nn::LayerCache> layers;  // (B, Hkv, S, hd) each
  std::vector<nn::LayerCache> memory;  // of the memory that blocks attend to; empty without one
  at::Tensor lengths;                  // (B) int64, positions that a row holds, its prefix included
};

class Decoder : public torch::nn::Module, public nn::HasOwnInit {
 public:
  // cross: blocks attend to a memory, which every pass then needs.
  Decoder(const DecoderOptions& options, bool cross, at::Device device);

  // ids (B, T) -> hidden states (B, T, D) in `dtype`, normalised. documents as in LanguageInputs. prefix: (B, P, D) in
  // `dtype`, vectors in front of the tokens, or undefined; memory: (B, M, D), with cross.
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& documents = {},
                     const at::Tensor& prefix = {}, const at::Tensor& memory = {});
  // Of tokens that are in several rows, without cross: ids (1, U) -> (1, U, D).
  at::Tensor forward(const at::Tensor& ids, at::ScalarType dtype, const nn::SharedTokens& shared);

  // Decoding, without gradient. `capacity` S: the most positions that a row will hold, prefix included.
  DecodeCache make_cache(int64_t rows, int64_t capacity, at::ScalarType dtype) const;
  // As forward(), and fills the cache. lengths (B) integer: the tokens of each row; padding follows, whose hidden
  // states have no meaning.
  at::Tensor prefill(const at::Tensor& ids, const at::Tensor& lengths, at::ScalarType dtype, DecodeCache& cache,
                     const at::Tensor& prefix = {}, const at::Tensor& memory = {});
  // One more token for each row: ids (B) -> hidden states (B, D), the values of forward() at that place. Reads and
  // writes the cache on the device alone, so it can be captured; the caller counts that no row goes beyond `capacity`.
  at::Tensor step(const at::Tensor& ids, at::ScalarType dtype, DecodeCache& cache);

  const nn::LmHead& head() const { return *lm_head_; }
  int64_t positions() const { return options_.positions; }
  // Products that end in the residual stream start smaller by sqrt(2 * layers), so its size does not grow with depth
  // (Radford et al., GPT-2).
  void init_own(uint64_t seed, const std::string& name) override;

 private:
  at::Tensor run(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& documents, const at::Tensor& prefix,
                 const std::vector<nn::LayerCache>& memory, DecodeCache* cache);
  std::vector<nn::LayerCache> project_memory(const at::Tensor& memory) const;
  void check_length(int64_t length) const;
  nn::RotaryTable rotary_rows(int64_t length) const;

  DecoderOptions options_;
  bool cross_;
  nn::RotaryTable rotary_;
  std::shared_ptr<nn::Embedding> embed_tokens_;
  TransformerBlocks layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
  std::shared_ptr<nn::LmHead> lm_head_;
};

}  // namespace hrm::models
