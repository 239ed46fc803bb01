#pragma once
// Our plain decoder as a model of the transformers library. No files here: export.h writes them.

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "hrm/checkpoint/export.h"
#include "hrm/models/decoder.h"

namespace hrm::checkpoint {

struct HfModel {
  nlohmann::ordered_json config;      // config.json
  nlohmann::ordered_json generation;  // generation_config.json
  std::vector<std::pair<std::string, at::Tensor>> weights;
};

// A model of the family `model_type`, or of the first one that computes what the model does: Llama for full attention,
// Mistral for a window, Qwen3 for norms of q and k, with or without a window. Our fused weights hold their rows:
// qkv_proj is q_proj, k_proj and v_proj; gate_up_proj is gate_proj and up_proj. The tensors are views, in the types of
// `weights`; dtype: of the files. Throws Error(usage) for another model, naming the other formats, and for a dtype
// other than float32 and bfloat16; Error(checkpoint) for weights that do not fit `options`.
HfModel hf_model(const models::DecoderOptions& options, const std::vector<std::pair<std::string, at::Tensor>>& weights,
                 const HfTokens& tokens, at::ScalarType dtype = at::kFloat, const std::string& model_type = "");

// How many weights each file takes, in order: as many as stay within `most` bytes together, at least one.
std::vector<size_t> shard_counts(const std::vector<uint64_t>& sizes, uint64_t most);

// tokenizer_config.json, which tells transformers how to open tokenizer.json.
nlohmann::ordered_json hf_tokenizer_config(const models::DecoderOptions& options, const HfTokens& tokens);

}  // namespace hrm::checkpoint
