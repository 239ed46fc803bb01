#pragma once
// HRM-LMs: an encoder reads the prompt into one vector, the reasoning core processes it, and a decoder conditioned on
// the core's output writes the response. Encoder, memories and decoder are exchangeable. Shapes: B rows, S prompt
// tokens, T response tokens, P memory vectors, D width, V vocabulary.

#include <memory>
#include <string>

#include "hrm/models/hrm_core.h"
#include "hrm/models/language_model.h"
#include "hrm/nn/mamba2.h"

namespace hrm::models {

// How the core's output z enters the decoder: as P prefix vectors, or as one vector for cross-attention.
enum class Bridge { prefix, cross_attention };

class PromptEncoder : public torch::nn::Module {
 public:
  // ids (B, S), mask (B, S) bool or undefined -> (B, S, D) in `dtype`.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, at::ScalarType dtype) = 0;
  virtual int64_t max_prompt() const { return 0; }  // maximum S; 0: unlimited
};

class AnswerDecoder : public torch::nn::Module {
 public:
  // ids (B, T), memory (B, P, D) in the compute dtype -> hidden states (B, T, D), normalised, in that dtype.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& memory) = 0;
  virtual const nn::LmHead& head() const = 0;
  virtual int64_t positions() const = 0;  // maximum T, including the memory if it is a prefix
  // The decoder that supports a cache, and how the memory enters it. Null if there is none.
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

// Intermediate values, which tests compare.
struct HrmLmTrace {
  at::Tensor encoded;  // (B, S, D)
  at::Tensor cls;      // (B, D) mean over the prompt's tokens
  at::Tensor prompt;   // (B, D)
  HrmCoreOutput core;
  at::Tensor bridge;  // (B, P, D)
  at::Tensor memory;  // (B, P, D) = gate * bridge
};

// cls = mean of encoder(prompt) over its tokens; x = prompt(cls); z = core(x); memory = gate(z) * bridge(z); hidden =
// decoder(ids, memory). With inputs.earlier_cycles it also runs decoder(ids, bridge(z_c)), ungated, for the cycles
// before the last. Submodules: dec, core, bridge, gate, prompt, enc.
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

  // Computes the inputs that forward() passes to the decoder, and the gate (B, 1) float32.
  HrmLmTrace reason(const LanguageInputs& inputs, at::Tensor& gate);

 private:
  at::Tensor bridge_memory(const at::Tensor& z) const;  // (B, D) -> (B, P, D)
  int64_t prefix() const;                               // number of vectors before the response

  HrmLmOptions options_;
  std::shared_ptr<PromptEncoder> enc_;
  std::shared_ptr<HrmCore> core_;
  std::shared_ptr<AnswerDecoder> dec_;
  std::shared_ptr<nn::Linear> prompt_, gate_, bridge_;
};

// The prototype of this architecture: pre-norm encoder with sinusoidal positions, memories of pre-norm blocks, and a
// post-norm decoder. Its blocks attend to the memory with either bridge.
struct PrototypeOptions {
  HrmLmOptions lm;
  int64_t vocabulary = 0;
  int64_t heads = 8;
  int64_t enc_layers = 2, dec_layers = 2, h_layers = 2, l_layers = 2;
  int64_t max_prompt = 512, max_answer = 512;  // S and T
  nn::FeedForwardFactory feed_forward = {};    // of the encoder; empty: GELU with inner width 4 D
};
// The result is uninitialised: call LanguageModel::initialise. Throws Error(usage) for contradictory values.
std::shared_ptr<HrmLm> make_prototype_lm(const PrototypeOptions& options, at::Device device);

// The same architecture with Llama-style blocks: RMSNorm, rotary positions, SwiGLU, grouped-query attention. The prefix
// bridge puts its vectors before the response tokens. With cross-attention every decoder block attends to the one
// vector.
enum class EncoderKind { transformer, mamba2 };

struct ModernLmOptions {
  HrmLmOptions lm;
  // Of the decoder; its width must be that of the core. A bidirectional transformer encoder and the memories' blocks
  // share its vocabulary, heads, head_dim, inner, eps, qk_norm and recompute.
  DecoderOptions decoder;
  EncoderKind encoder = EncoderKind::transformer;
  nn::Mamba2Options mamba2;  // of the mamba2 encoder; its width is the core's
  int64_t enc_layers = 2, h_layers = 2, l_layers = 2;
  int64_t max_prompt = 512;                      // maximum S of a transformer encoder
  nn::FeedForwardFactory enc_feed_forward = {};  // of a transformer encoder; empty: SwiGLU
};
// The result is uninitialised: call LanguageModel::initialise. Throws Error(usage) for contradictory values.
std::shared_ptr<HrmLm> make_modern_lm(const ModernLmOptions& options, at::Device device);

}  // namespace hrm::models
