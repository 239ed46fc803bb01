#pragma once
// The model interface of the language task: hidden states before the head, and additional loss terms. Shapes: B rows, T
// tokens, S prompt tokens, D width, V vocabulary, C reasoning cycles.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/models/decoder.h"
#include "hrm/nn/feed_forward.h"
#include "hrm/nn/lm_head.h"
#include "hrm/nn/parameter.h"

namespace hrm::models {

// One batch, on the model's device. Ids are int32 or int64 in 0..V-1 (unchecked on a GPU).
struct LanguageInputs {
  at::Tensor ids;  // (B, T)
  // (B, T) int32 or int64: a document is a run of equal numbers, and tokens attend only to tokens of their document.
  // Undefined: each row is one document. Models with a prompt do not support it.
  at::Tensor documents = {};
  // The most documents in a row; 0: unknown, which costs time on a GPU. Must not be too small (ops::attention_spans).
  int64_t most_documents = 0;
  // Only for decoders, for prefix sharing: `ids` is (1, U), this maps them to rows, and hidden states are (1, U, D).
  nn::SharedTokens shared = {};
  // For models with a prompt: (B, S) ids and a (B, S) bool or integer mask, 1 for tokens and 0 for padding. An
  // undefined mask means no padding.
  at::Tensor prompt_ids = {}, prompt_mask = {};
  // 0-dim float32 factor of the gate's scale: 0 during warm-up, then 1. Undefined: 1.
  at::Tensor gate_warmup = {};
  // Whether to return hidden states of the cycles before the last, for deep supervision.
  bool earlier_cycles = false;
};

struct LanguageOutput {
  at::Tensor hidden;  // (B, T, D) compute dtype, after the norm: the head's input
  // Only for models with a reasoning core, otherwise empty or undefined:
  std::vector<at::Tensor> earlier_hidden = {};  // C - 1 of the same, with inputs.earlier_cycles
  at::Tensor gate = {};                         // (B, 1) float32 in 0..1
  at::Tensor halt = {};                         // (C, B) float32, halting probability after each cycle
  std::vector<nn::AuxiliaryLoss> auxiliary = {};
};

// Which rows a model accepts.
struct LanguageLimits {
  bool prompted = false;   // reads prompt_ids; `ids` hold only the response, which begins with BOS
  bool cached = false;     // supports make_cache, prefill and step
  int64_t max_tokens = 0;  // maximum number of `ids` per row
  int64_t max_prompt = 0;  // maximum number of prompt_ids per row; 0: unlimited
};

class LanguageModel : public torch::nn::Module {
 public:
  virtual LanguageLimits limits() const = 0;

  // Differentiable in gradient mode. Does not synchronise or read back, so it can be captured.
  virtual LanguageOutput forward(const LanguageInputs& inputs) = 0;

  virtual const nn::LmHead& head() const = 0;
  at::Tensor logits(const at::Tensor& hidden) const { return head().forward(hidden); }  // (..., D) -> (..., V)

  // Decoding, without gradient. Models without a cache throw Error(usage).
  //    make_cache  for `rows` rows of at most `capacity` tokens
  //    prefill     as forward(); lengths (B) integer: tokens in each row of inputs.ids, the rest is padding; returns
  //    hidden
  //                states (B, T, D), meaningless at padding
  //    step        one more token per row, ids (B) -> hidden states (B, D); see Decoder::step
  virtual DecodeCache make_cache(int64_t rows, int64_t capacity) const;
  virtual at::Tensor prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache);
  virtual at::Tensor step(const at::Tensor& ids, DecodeCache& cache);

  // Whether the recorded part of a pass uses each block once (nn::ParameterSet::blocks_run_once).
  virtual bool blocks_run_once() const { return true; }

  nn::ParameterSet& parameter_set() { return parameters_; }
  at::ScalarType compute_dtype() const { return parameters_.compute_dtype(); }

  // Freezes modules or parameters by name ("encoder", "core.h_init"), including everything below them. Throws
  // Error(usage) if a name matches nothing.
  void freeze(const std::vector<std::string>& names);
  // Draws the initial values (a function of seed and names only), freezes, and builds the parameter set. Call once,
  // before the first use.
  void initialise(uint64_t seed, at::ScalarType compute_dtype, const std::vector<std::string>& frozen = {});
  // Only builds the parameter set, for a model that was filled and frozen by other means, e.g. from a file.
  void build_parameters(at::ScalarType compute_dtype);
  // The same for a model that is not trained; see ParameterSet::build_frozen.
  void build_frozen(at::ScalarType compute_dtype) { parameters_.build_frozen(*this, compute_dtype); }

 private:
  nn::ParameterSet parameters_;
};

}  // namespace hrm::models
