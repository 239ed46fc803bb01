#pragma once
// The small models of tests/fixtures/hf_families, opened.
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hf_cases.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/nn/lora.h"
#include "hrm/state/tensor_bytes.h"
#include "support/paths.h"

namespace hrm::checkpoint::families {

namespace fs = std::filesystem;
using models::DecoderLm;

inline constexpr int64_t kPrompt = 12;

inline fs::path fixtures() {
  return fs::path(test::source_dir()) / "tests/fixtures/hf_families";
}

inline std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(fixtures())) {
    if (entry.is_directory()) all.push_back(entry.path().filename().string());
  }
  std::sort(all.begin(), all.end());
  return all;
}

struct Opened {
  HfModelConfig config;
  models::DecoderOptions options;
  std::shared_ptr<DecoderLm> model;
};

inline Opened open_folder(const fs::path& folder, nn::WeightFormat weights = nn::WeightFormat::f32,
                          at::ScalarType expert_dtype = at::kFloat) {
  Opened out{.config = read_hf_config(folder), .options = {}, .model = nullptr};
  out.options = decoder_options_of(out.config, out.config.max_position_embeddings);
  out.options.weights = weights;
  out.options.expert_dtype = expert_dtype;
  out.model = std::make_shared<DecoderLm>(out.options, at::kCPU);
  load_hf_weights(SafetensorsSet(folder), out.options, *out.model);
  return out;
}

inline Opened open_frozen(const std::string& name) {
  Opened out = open_folder(fixtures() / name);
  out.model->build_frozen(at::kFloat);
  return out;
}

struct Expected {
  at::Tensor ids;     // (1, T)
  at::Tensor logits;  // (T, V)
};

inline Expected expected_of(const std::string& name) {
  const SafetensorsFile file(fixtures() / name / "expected.safetensors");
  const auto tensor = [&](const char* key) {
    const ArrayView& view = file.at(key);
    return tensor_from_bytes(view.dtype, view.shape, view.bytes).clone();
  };
  return {tensor("ids").unsqueeze(0), tensor("logits")};
}

inline at::Tensor logits_of(DecoderLm& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model.logits(model.forward({.ids = ids}).hidden).squeeze(0);
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

inline nn::LoraOptions adapter_of(const Opened& it) {
  nn::LoraOptions options{.rank = 3, .alpha = 6};
  options.targets = family_targets(it.options.form, options.targets);
  return options;
}

inline void fill(const nn::LoraSet& lora) {
  at::manual_seed(11);
  const at::NoGradGuard no_grad;
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
    pair.A.normal_();
    pair.B.normal_().mul_(0.1);
  }
}

}  // namespace hrm::checkpoint::families
