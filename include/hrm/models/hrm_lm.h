#pragma once
// HRM language models: an encoder reads the prompt into one vector, the reasoning core works on it, and a decoder
// writes the answer with the core's result in view. Encoder, memories and decoder are interchangeable parts. Shapes: B
// rows, S prompt tokens, T answer tokens, P memory vectors, D width, V vocabulary.

#include <memory>
#include <string>

#include "hrm/models/hrm_core.h"
#include "hrm/models/language_model.h"
#include "hrm/nn/mamba2.h"

namespace hrm::models {

// How the core's result z enters the decoder: prefix = as P vectors; cross_attention = as one.
enum class Bridge { prefix, cross_attention };

class PromptEncoder : public torch::nn::Module {
 public:
  // ids (B, S), mask (B, S) bool or undefined -> (B, S, D) in `dtype`.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, at::ScalarType dtype) = 0;
  virtual int64_t max_prompt() const { return 0; }  // S at most; 0: any number
};

class AnswerDecoder : public torch::nn::Module {
 public:
  // ids (B, T), memory (B, P, D) in the compute dtype -> hidden states (B, T, D), normalised, in that dtype.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& memory) = 0;
  virtual const nn::LmHead& head() const = 0;
  virtual int64_t positions() const = 0;  // T at most, with the memory where it is a prefix
  // The decoder that can continue from a cache, and how the memory enters it; null where there is none.
  virtual Decoder* cached() { return nullptr; }
  virtual Bridge bridge() const { return Bridge::cross_attention; }
};

struct HrmLmOptions {
  HrmCoreOptions core;
  Bridge bridge = Bridge::prefix;
  int64_t prefix_len = 8;  // P of the prefix bridge
  // gate = clamp(gate_scale * sigmoid(w z + b) + gate_bias, 0, 1)
  double gate_scale = 1, gate_bias = 0;
};

// The parts of the middle, intermediate values that tests compare.
struct HrmLmTrace {
  at::Tensor encoded;  // (B, S, D)
  at::Tensor cls;      // (B, D) mean of the prompt's tokens
  at::Tensor prompt;   // (B, D)
  HrmCoreOutput core;
  at::Tensor bridge;  // (B, P, D)
  at::Tensor memory;  // (B, P, D) = gate * bridge
};

// cls = mean of encoder(prompt) over its tokens; x = prompt(cls); z = core(x); memory = gate(z) * bridge(z); hidden =
// decoder(ids, memory). With inputs.earlier_cycles also decoder(ids, bridge(z_c)), not gated, for the cycles before the
// last. Submodules dec, core, bridge, gate, prompt, enc.
class HrmLm : public LanguageModel {
 public:
  HrmLm(const HrmLmOptions& options, std::shared_ptr<PromptEncoder> enc, std::shared_ptr<HrmCore> core,
        std::shared_ptr<AnswerDecoder> dec, at::Device device);

  LanguageLimits limits() const override;
  LanguageOutput forward(const LanguageInputs& inputs) override;
  const nn::LmHead& head() const override { return dec_->head(); }
  bool blocks_run_once() const override { return false; }
  DecodeCache make_cache(int64_t rows, int64_t capacity) const override;
  at::Tensor prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache) override;
  at::Tensor step(const at::Tensor& ids, DecodeCache& cache) override;

  // What forward() gives the decoder, and the gate (B, 1) float32.
  HrmLmTrace reason(const LanguageInputs& inputs, at::Tensor& gate);

 private:
  at::Tensor bridge_memory(const at::Tensor& z) const;  // (B, D) -> (B, P, D)
  int64_t prefix() const;                               // vectors in front of the answer

  HrmLmOptions options_;
  std::shared_ptr<PromptEncoder> enc_;
  std::shared_ptr<HrmCore> core_;
  std::shared_ptr<AnswerDecoder> dec_;
  std::shared_ptr<nn::Linear> prompt_, gate_, bridge_;
};

// The prototype of this architecture: pre-norm encoder with sinusoidal positions, memories of pre-norm blocks, and a
// post-norm decoder whose blocks attend to the memory, whatever the bridge.
struct PrototypeOptions {
  HrmLmOptions lm;
  int64_t vocabulary = 0;
  int64_t heads = 8;
  int64_t enc_layers = 2, dec_layers = 2, h_layers = 2, l_layers = 2;
  int64_t max_prompt = 512, max_answer = 512;  // S and T
  nn::FeedForwardFactory feed_forward = {};    // of the encoder; empty: GELU, 4 D wide
};
// Not yet initialised: call LanguageModel::initialise. Error(usage) where values contradict each other.
std::shared_ptr<HrmLm> make_prototype_lm(const PrototypeOptions& options, at::Device device);

// The same architecture from the blocks of today's language models: RMSNorm, rotary positions, SwiGLU, grouped heads.
// The prefix bridge puts its vectors in front of the answer's tokens; with cross-attention every block of the decoder
// attends to the one vector.
enum class EncoderKind { transformer, mamba2 };

struct ModernLmOptions {
  HrmLmOptions lm;
  // The decoder's options. A transformer encoder (bidirectional) and the memories' blocks share its vocabulary, heads,
  // head_dim, inner, eps, qk_norm and recompute. Its width must be that of the core.
  DecoderOptions decoder;
  EncoderKind encoder = EncoderKind::transformer;
  nn::Mamba2Options mamba2;  // of the mamba2 encoder; width is that of the core
  int64_t enc_layers = 2, h_layers = 2, l_layers = 2;
  int64_t max_prompt = 512;                      // S, of a transformer encoder
  nn::FeedForwardFactory enc_feed_forward = {};  // of a transformer encoder; empty: SwiGLU
};
// Not yet initialised: call LanguageModel::initialise. Error(usage) where values contradict each other.
std::shared_ptr<HrmLm> make_modern_lm(const ModernLmOptions& options, at::Device device);

}  // namespace hrm::models
