#pragma once
// config.json of models that Hugging Face's transformers library saves: causal decoders of the families that our
// decoder can hold, and BERT encoders of sentences. Keys that change nothing about the arithmetic are skipped; what
// would change it and is not known here is refused.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

// A pre-norm decoder with RMSNorm, rotary positions and SwiGLU.
struct HfModelConfig {
  std::string model_type;  // qwen3, llama or mistral
  int64_t vocab_size = 0, hidden_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t window = 0;  // sliding attention in every layer; 0: all positions
  double rope_theta = 10000, rms_norm_eps = 1e-6;
  bool qk_norm = false;               // of each head, before the rotation
  bool tied = false;                  // the head reads the embedding
  int64_t bos_id = -1, pad_id = -1;   // -1: there is none
  std::vector<int64_t> eos_ids = {};  // with those of generation_config.json
};

enum class HubKind { model, data };

// What to type if the missing `path` looks like the name or address of a model (or data set) on the Hugging Face hub,
// such as "Qwen/Qwen3-0.6B": "; if that is ... , type 'hf download ...'". Otherwise empty.
std::string hub_name_hint(const std::string& path, HubKind kind = HubKind::model);

// `generation`: the text of generation_config.json, or empty. Throws Error(code) as "origin: reason" for invalid JSON,
// a missing key or one of another type or size, an unsupported architecture, activation, bias or rotation, and
// quantised weights. Missing keys have the library's defaults.
HfModelConfig parse_hf_config(std::string_view text, std::string_view generation, const std::string& origin,
                              ExitCode code = ExitCode::checkpoint);
// Of a folder. Throws as above, and for a folder or file that is not there.
HfModelConfig read_hf_config(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);

// A BERT encoder, as models/bert_encoder.h computes it.
struct HfBertConfig {
  int64_t vocab_size = 0, hidden_size = 0, layers = 0, heads = 0, intermediate_size = 0;
  int64_t max_position_embeddings = 0, type_vocab_size = 0;
  double layer_norm_eps = 1e-12;
  int64_t max_seq_length =
      0;  // tokens of a sentence that are read: of sentence_bert_config.json, otherwise all positions
};
HfBertConfig parse_bert_config(std::string_view text, const std::string& origin, ExitCode code = ExitCode::checkpoint);
// From a folder. If sentence-transformers' files are there, 1_Pooling/config.json must ask only for the mean over
// tokens, and modules.json only for encoder, pooling and normalisation.
HfBertConfig read_bert_config(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);

}  // namespace hrm
