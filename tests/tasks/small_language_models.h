#pragma once
// Language models of every kind that decodes in its own way, small and untrained.

#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"

namespace hrm::test {

constexpr int64_t kVocabulary = 31;
constexpr int64_t kPositions = 32;

inline models::DecoderOptions small_decoder() {
  return {.vocabulary = kVocabulary,
          .width = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,  // one that the GPU has a kernel for
          .inner = 24,
          .positions = kPositions,
          .qk_norm = true};
}

inline std::shared_ptr<models::LanguageModel> small_decoder_lm(at::Device device = at::kCPU, int64_t window = 0) {
  models::DecoderOptions options = small_decoder();
  options.window = window;
  const auto model = std::make_shared<models::DecoderLm>(options, device);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

inline std::shared_ptr<models::LanguageModel> small_hrm_lm(models::Bridge bridge, at::Device device = at::kCPU) {
  models::ModernLmOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2};
  o.lm.bridge = bridge;
  o.lm.prefix_len = 3;
  o.decoder = small_decoder();
  o.enc_layers = o.h_layers = o.l_layers = 1;
  o.max_prompt = 16;
  const auto model = models::make_modern_lm(o, device);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

inline std::shared_ptr<models::LanguageModel> small_prototype() {
  models::PrototypeOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 1};
  o.lm.bridge = models::Bridge::cross_attention;
  o.vocabulary = kVocabulary;
  o.heads = 2;
  o.max_prompt = 16;
  o.max_answer = 24;
  const auto model = models::make_prototype_lm(o, at::kCPU);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

}  // namespace hrm::test
