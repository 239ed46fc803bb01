#pragma once
// Small decoders of every kind that transformers has an architecture for.

#include <string>
#include <utility>
#include <vector>

#include "hrm/models/decoder_lm.h"

namespace hrm::checkpoint {

struct HfCase {
  std::string name, architecture;
  models::DecoderOptions options;
};

inline std::vector<HfCase> hf_cases() {
  models::DecoderOptions o{.vocabulary = 1505,
                           .width = 24,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 8,
                           .inner = 40,
                           .positions = 48,
                           .rope_theta = 5000,
                           .eps = 1e-5};
  std::vector<HfCase> cases = {{"llama", "LlamaForCausalLM", o}};
  o.window = 5;
  o.tied = false;
  cases.push_back({"mistral", "MistralForCausalLM", o});
  o.qk_norm = true;
  cases.push_back({"qwen3_window", "Qwen3ForCausalLM", o});
  o.window = 0;
  cases.push_back({"qwen3", "Qwen3ForCausalLM", o});
  return cases;
}

// With weights that are all different, those of norms included.
inline std::shared_ptr<models::DecoderLm> hf_decoder(const models::DecoderOptions& options) {
  const auto model = std::make_shared<models::DecoderLm>(options, at::kCPU);
  model->initialise(/*seed=*/5, at::kFloat);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) at::Tensor(parameter).add_(at::randn_like(parameter) * 0.05);
  return model;
}

inline std::vector<std::pair<std::string, at::Tensor>> decoder_weights(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const auto& item : model.named_parameters()) weights.emplace_back(item.key(), item.value().detach());
  return weights;
}

}  // namespace hrm::checkpoint
