#pragma once
// config.json of models saved by Hugging Face's transformers library: causal decoders that our decoder can represent,
// and BERT sentence encoders. Keys that do not affect the arithmetic are skipped; unknown keys that might affect it are
// errors.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/hf_family.h"

namespace hrm {

// A decoder with RMSNorm, rotary positions and gated feed-forward layers or mixtures of such experts.
// How a folder holds the weights of linear layers: as floating-point numbers of 16 or 32 bits, or as compressed-tensors
// writes 8-bit numbers with a scale for each output (`float-quantized`, e4m3; `int-quantized` and `naive-quantized`).
enum class HfStoredWeights { floats, fp8, int8 };

struct HfModelConfig {
  std::string model_type;  // of a family of hf_family.h
  int64_t vocab_size = 0, hidden_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t window = 0;  // sliding-window attention in every layer; 0: full attention
  double rope_theta = 10000, rms_norm_eps = 1e-6;
  RopeScaling rope = {};
  DecoderForm form = {};
  DecoderExperts experts = {};
  bool qk_norm = false;               // per head, before the rotation
  bool tied = false;                  // the LM head shares the embedding's weights
  int64_t bos_id = -1, pad_id = -1;   // -1: none
  std::vector<int64_t> eos_ids = {};  // including those of generation_config.json
  HfStoredWeights stored = HfStoredWeights::floats;
};

enum class HubKind { model, data };

// What to type if the missing `path` looks like the name or address of a model or dataset on the Hugging Face Hub, e.g.
// "Qwen/Qwen3-0.6B". The hint reads "; if that is ... , type 'hf download ...'". Empty for other paths.
std::string hub_name_hint(const std::string& path, HubKind kind = HubKind::model);

// `generation`: the text of generation_config.json, or empty. Throws Error(code) as "origin: reason" for invalid JSON,
// a required key that is missing, and a value of the wrong type or range. Unsupported architectures, activations,
// biases and rotations, and quantised weights other than those of HfStoredWeights, are also errors, which name the
// key. Other missing keys have the library's defaults.
HfModelConfig parse_hf_config(std::string_view text, std::string_view generation, const std::string& origin,
                              ExitCode code = ExitCode::checkpoint);
// Reads them from a folder. Throws as above, and if the folder or a file is missing.
HfModelConfig read_hf_config(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);

// A BERT encoder, as computed by models/bert_encoder.h.
struct HfBertConfig {
  int64_t vocab_size = 0, hidden_size = 0, layers = 0, heads = 0, intermediate_size = 0;
  int64_t max_position_embeddings = 0, type_vocab_size = 0;
  double layer_norm_eps = 1e-12;
  int64_t max_seq_length =
      0;  // tokens of a sentence that are read: of sentence_bert_config.json, otherwise all positions
};
HfBertConfig parse_bert_config(std::string_view text, const std::string& origin, ExitCode code = ExitCode::checkpoint);
// Reads it from a folder. With sentence-transformers files, 1_Pooling/config.json must select only mean pooling over
// tokens, and modules.json may have only encoder, pooling and normalization.
HfBertConfig read_bert_config(const std::filesystem::path& folder, ExitCode code = ExitCode::checkpoint);

}  // namespace hrm
