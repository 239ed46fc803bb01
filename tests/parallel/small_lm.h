#pragma once
// Small language models, whole or one part of several.

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"

namespace hrm::test {

constexpr int64_t kSmallVocabulary = 96;

struct SmallLm {
  std::function<void(models::DecoderOptions&)> change = [](models::DecoderOptions&) {};
  std::optional<models::Bridge> bridge = {};  // of an HRM language model; without: a plain decoder
  models::EncoderKind encoder = models::EncoderKind::transformer;
};

// Two layers that up to four parts can share.
inline models::DecoderOptions small_decoder_options(const SmallLm& small,
                                                    std::shared_ptr<const nn::TensorAcross> across = nullptr) {
  models::DecoderOptions options{.vocabulary = kSmallVocabulary,
                                 .width = 64,
                                 .layers = 2,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .inner = 96,
                                 .positions = 32,
                                 .qk_norm = true,
                                 .across = std::move(across)};
  small.change(options);
  return options;
}

// Without values. On a device of any kind, also the meta device.
inline std::shared_ptr<models::LanguageModel> make_small_lm(const SmallLm& small,
                                                            std::shared_ptr<const nn::TensorAcross> across = nullptr,
                                                            at::Device device = at::kCPU) {
  const models::DecoderOptions options = small_decoder_options(small, std::move(across));
  if (!small.bridge) return std::make_shared<models::DecoderLm>(options, device);
  models::ModernLmOptions o;
  o.decoder = options;
  o.lm.core = {.width = options.width, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2, .halting = true};
  o.lm.bridge = *small.bridge;
  o.lm.prefix_len = 3;
  o.encoder = small.encoder;
  o.mamba2 = {.head_dim = 8, .state = 4, .groups = 2, .chunk = 4};
  o.enc_layers = o.h_layers = o.l_layers = 1;
  o.max_prompt = 16;
  return models::make_modern_lm(o, device);
}

}  // namespace hrm::test
