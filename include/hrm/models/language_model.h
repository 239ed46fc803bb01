#pragma once
// What the language task needs of a model: hidden states in front of the head, and what a loss adds to their
// cross-entropy. Shapes: B rows, T tokens, S tokens of a prompt, D width, V vocabulary, C reasoning cycles.

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

// One batch, all on the model's device. Ids are int32 or int64 in 0..V-1 (unchecked on a GPU).
struct LanguageInputs {
  at::Tensor ids;  // (B, T)
  // (B, T) int32 or int64: tokens attend to those of the same number alone, so that a row can hold several documents.
  // Undefined: each row is one. Models with a prompt take none.
  at::Tensor documents = {};
  // Decoders alone: `ids` is (1, U), and these say where they are in rows; hidden states are (1, U, D).
  nn::SharedTokens shared = {};
  // Models with a prompt: (B, S) ids, and (B, S) bool or integer, 1 for a token and 0 for padding (undefined: all are
  // tokens).
  at::Tensor prompt_ids = {}, prompt_mask = {};
  // 0-dim float32, multiplies the gate's scale: 0 until warm-up is over, then 1. Undefined: 1.
  at::Tensor gate_warmup = {};
  // Whether hidden states of the cycles before the last are wanted, for deep supervision.
  bool earlier_cycles = false;
};

struct LanguageOutput {
  at::Tensor hidden;  // (B, T, D) compute dtype, normalised: what the head reads
  // Of models with a reasoning core, otherwise empty or undefined:
  std::vector<at::Tensor> earlier_hidden = {};  // C - 1 of the same, where inputs.earlier_cycles
  at::Tensor gate = {};                         // (B, 1) float32 in 0..1
  at::Tensor halt = {};                         // (C, B) float32, probability of halting after each cycle
  std::vector<nn::AuxiliaryLoss> auxiliary = {};
};

// What rows a model takes.
struct LanguageLimits {
  bool prompted = false;   // reads prompt_ids; `ids` are the answer alone, which begins with BOS
  bool cached = false;     // make_cache, prefill and step are there
  int64_t max_tokens = 0;  // of `ids` in a row
  int64_t max_prompt = 0;  // of prompt_ids in a row; 0: any number
};

class LanguageModel : public torch::nn::Module {
 public:
  virtual LanguageLimits limits() const = 0;

  // Differentiable where gradient mode is on. Waits for nothing and reads nothing back, so it can be captured.
  virtual LanguageOutput forward(const LanguageInputs& inputs) = 0;

  virtual const nn::LmHead& head() const = 0;
  at::Tensor logits(const at::Tensor& hidden) const { return head().forward(hidden); }  // (..., D) -> (..., V)

  // Decoding, without gradient; Error(usage) from a model that has no cache. make_cache: for this many rows of at most
  // `capacity` tokens. prefill: as forward(), with lengths (B) integer, the tokens in each row of inputs.ids before its
  // padding; returns hidden states (B, T, D), without meaning at padding. step: one more token for each row, ids (B) ->
  // hidden states (B, D); see Decoder::step.
  virtual DecodeCache make_cache(int64_t rows, int64_t capacity) const;
  virtual at::Tensor prefill(const LanguageInputs& inputs, const at::Tensor& lengths, DecodeCache& cache);
  virtual at::Tensor step(const at::Tensor& ids, DecodeCache& cache);

  // Whether the recorded part of a pass uses each block once (nn::ParameterSet::blocks_run_once).
  virtual bool blocks_run_once() const { return true; }

  nn::ParameterSet& parameter_set() { return parameters_; }
  at::ScalarType compute_dtype() const { return parameters_.compute_dtype(); }

  // Parts that are not trained: names of modules or parameters ("encoder", "core.h_init"), with all below them.
  // Error(usage) where one names nothing.
  void freeze(const std::vector<std::string>& names);
  // Draws the initial values, a function of seed and names alone, freezes, and builds the parameter set; once, before
  // the first use.
  void initialise(uint64_t seed, at::ScalarType compute_dtype, const std::vector<std::string>& frozen = {});
  // The parameter set alone, for a model that was filled and frozen otherwise, e.g. from a file.
  void build_parameters(at::ScalarType compute_dtype);
  // The same of a model that is not to be trained; see ParameterSet::build_frozen.
  void build_frozen(at::ScalarType compute_dtype) { parameters_.build_frozen(*this, compute_dtype); }

 private:
  nn::ParameterSet parameters_;
};

}  // namespace hrm::models
