#pragma once
// Writes the weights of a checkpoint for other programs. Each writes one file or folder, whole or not at all;
// Error(environment) when it cannot.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/decoder.h"
#include "hrm/models/make_language_model.h"

namespace hrm::checkpoint {

// `weights` below: names as in ModelWeights; for puzzle models the official ones without prefix. Names of language
// models have no prefix.
inline constexpr const char* kOfficialPrefix = "model.inner.";
inline constexpr const char* kOfficialPtPrefix = "_orig_mod.model.inner.";  // as the official trainer saves them

// A safetensors file.
void export_safetensors(const std::vector<std::pair<std::string, at::Tensor>>& weights,
                        const std::filesystem::path& file, const std::string& prefix = kOfficialPrefix);

// A state dict that Python's torch.load opens with its default settings, and with the default prefix the official code
// loads. H_init, L_init and init_hidden become bfloat16, as that code computing in bfloat16 has them, where it loses
// nothing.
void export_pt(const std::vector<std::pair<std::string, at::Tensor>>& weights, const std::filesystem::path& file,
               const std::string& prefix = kOfficialPtPrefix);

// A TorchScript module that Python's torch.jit.load opens and runs in float32:
//   forward(inputs: (B, S) int, puzzle_identifiers: (B) int, segments: int)
//     -> (logits (B, S, V), q_halt (B), q_continue (B)), all float32, after `segments` segments from a fresh carry.
// Parameters have the official names with "layers.<i>" spelt "layer<i>", because TorchScript calls submodules by
// identifier. Throws Error(checkpoint) when the weights are not those of the configured model.
void export_torchscript(const config::ModelConfig& config,
                        const std::vector<std::pair<std::string, at::Tensor>>& weights,
                        const std::filesystem::path& file);

// The same for a language model, `weights` by its parameters' own names, rows of any length unless the style is the
// prototype's:
//   forward(ids: (B, T) int) -> logits (B, T, V)                                                 a plain decoder
//   forward(ids: (B, T) int, prompt_ids: (B, S) int, prompt_mask: (B, S) or None) -> logits      an HRM language model
// The mask is 1 for a token and 0 for padding; None: all are tokens. A row is one document. The gate is as after its
// warm-up, and routing has no jitter. Mamba2's recurrence runs position by position. Throws Error(checkpoint) as above.
void export_language_torchscript(const config::Config& config, const models::LanguageSizes& sizes,
                                 const std::vector<std::pair<std::string, at::Tensor>>& weights,
                                 const std::filesystem::path& file);

// The same for a causal model of any family (hrm/formats/hf_family.h), `weights` by our names, an adapter merged:
//   forward(ids: (B, T) int) -> logits (B, T, V)
// A row of more than options.positions raises an error. Throws Error(checkpoint) as above, and Error(usage) for layers
// without a form in TorchScript.
void export_causal_torchscript(const models::DecoderOptions& options,
                               const std::vector<std::pair<std::string, at::Tensor>>& weights,
                               const std::filesystem::path& file);

// What the transformers library is to know about a model's tokens.
struct HfTokens {
  int64_t bos = -1, eos = -1, pad = -1;                     // ids; -1 = there is none
  std::string bos_text = {}, eos_text = {}, pad_text = {};  // as they are in the tokenizer's file; empty = not known
  std::filesystem::path tokenizer = {};                     // a tokenizer.json, which is copied; empty: none
  std::vector<int64_t> ends = {};                           // where several ids end a text: all of them, eos the first
  // Files copied unchanged under their names, such as generation_config.json, tokenizer_config.json and
  // chat_template.jinja of the folder that a model was fine-tuned from. They replace files that would be written.
  std::vector<std::filesystem::path> files = {};
};

// How the weights are in the folder.
struct HfFormat {
  at::ScalarType dtype = at::kFloat;  // or at::kBFloat16; other floating-point types are converted
  // fp8 or int8: the blocks' linear layers are written in 8 bits with a scale for each output, in the format
  // compressed-tensors; everything else is in `dtype`. Dense models only.
  nn::WeightFormat weights = nn::WeightFormat::f32;
  // Weights above this many bytes are split into files of at most this size, or of one tensor, as transformers does.
  uint64_t shard_bytes = 5'000'000'000;
  // The family (hf_family.h) that the folder is of. Empty: the first one that computes what the model does.
  std::string model_type = {};
};

// A folder that transformers opens (AutoModelForCausalLM, and AutoTokenizer if there is a tokenizer): config.json,
// generation_config.json, model.safetensors (or shards and model.safetensors.index.json), tokenizer.json,
// tokenizer_config.json. For the plain decoder with a gated feed-forward layer, `weights` by our names. The host holds
// copies of one file at a time. Throws Error(usage) for another model or dtype, or if the family does not compute what
// the model does; Error(checkpoint) for weights that do not fit `options`, Error(environment) if `folder` exists and is
// not empty.
void export_hf(const models::DecoderOptions& options, const std::vector<std::pair<std::string, at::Tensor>>& weights,
               const HfTokens& tokens, const std::filesystem::path& folder, const HfFormat& format = {});

}  // namespace hrm::checkpoint
