// Small models of each family as transformers saved and computed them (make_hf_families.py): logits, greedy tokens,
// adapters, 4-bit weights, gradients, and what is exported again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "hf_families.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/formats/json.h"
#include "hrm/formats/safetensors.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/init.h"
#include "hrm/nn/rotary.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace families;  // NOLINT(google-build-using-namespace)

class HfFamilies : public testing::TestWithParam<std::string> {};

TEST_P(HfFamilies, GivesTheLogitsOfTransformers) {
  const Opened it = open_frozen(GetParam());
  const Expected want = expected_of(GetParam());
  EXPECT_EQ(want.ids.size(1), kPrompt + 40);
  EXPECT_GT(want.logits.abs().max().item<double>(), 0.5) << "numbers that say something";
  EXPECT_LT(distance(logits_of(*it.model, want.ids), want.logits), 1e-4);
}

// With the cache: the same tokens, and the same logits at each of them.
TEST_P(HfFamilies, DecodesTheGreedyTokensOfTransformers) {
  const Opened it = open_frozen(GetParam());
  const Expected want = expected_of(GetParam());
  const int64_t T = want.ids.size(1);
  const at::NoGradGuard no_grad;
  models::DecodeCache cache = it.model->make_cache(1, T);
  const at::Tensor hidden =
      it.model->prefill({.ids = want.ids.narrow(1, 0, kPrompt)}, at::full({1}, kPrompt, at::kLong), cache);
  at::Tensor logits = it.model->logits(hidden.select(1, kPrompt - 1));
  for (int64_t i = kPrompt; i < T; ++i) {
    EXPECT_LT(distance(logits[0], want.logits[i - 1]), 1e-4) << i;
    const at::Tensor best = logits.argmax(-1);
    ASSERT_EQ(best.item<int64_t>(), want.ids[0][i].item<int64_t>()) << "token " << i;
    logits = it.model->logits(it.model->step(best, cache));
  }
}

// In bfloat16 the same direction, in one pass and with the cache.
TEST_P(HfFamilies, ComputesInBfloat16) {
  const Opened it = open_folder(fixtures() / GetParam());
  it.model->build_frozen(at::kBFloat16);
  const Expected want = expected_of(GetParam());
  const auto cosine = [](const at::Tensor& a, const at::Tensor& b) {
    return at::cosine_similarity(a.flatten().to(at::kFloat), b.flatten(), 0).item<double>();
  };
  EXPECT_GT(cosine(logits_of(*it.model, want.ids), want.logits), 0.998);
  const at::NoGradGuard no_grad;
  const int64_t T = want.ids.size(1);
  models::DecodeCache cache = it.model->make_cache(1, T);
  it.model->prefill({.ids = want.ids.narrow(1, 0, kPrompt)}, at::full({1}, kPrompt, at::kLong), cache);
  std::vector<at::Tensor> logits;
  for (int64_t i = kPrompt; i < T; ++i)
    logits.push_back(it.model->logits(it.model->step(want.ids.select(1, i), cache)));
  EXPECT_GT(cosine(at::cat(logits), want.logits.narrow(0, kPrompt, T - kPrompt)), 0.998);
}

// A document begins anew, whatever stands before it in its row.
TEST_P(HfFamilies, DocumentsOfARowAreApart) {
  const Opened it = open_frozen(GetParam());
  const Expected want = expected_of(GetParam());
  const at::NoGradGuard no_grad;
  const at::Tensor documents = at::cat({at::zeros({1, kPrompt}, at::kLong), at::ones({1, 40}, at::kLong)}, 1);
  const at::Tensor got =
      it.model->logits(it.model->forward({.ids = want.ids, .documents = documents}).hidden).squeeze(0);
  EXPECT_LT(distance(got.narrow(0, 0, kPrompt), want.logits.narrow(0, 0, kPrompt)), 1e-4);
  EXPECT_GT(distance(got.narrow(0, kPrompt, 40), want.logits.narrow(0, kPrompt, 40)), 1e-3);
}

// The derivative in a random direction, by two passes and by the gradients.
TEST_P(HfFamilies, GradientsOfAllWeights) {
  const Opened it = open_folder(fixtures() / GetParam());
  it.model->build_parameters(at::kFloat);
  const at::Tensor ids = expected_of(GetParam()).ids.narrow(1, 0, 24);
  at::manual_seed(3);
  const at::Tensor weights = at::randn({24, it.options.vocabulary});
  const auto loss = [&] {
    return (it.model->logits(it.model->forward({.ids = ids}).hidden).squeeze(0).log_softmax(-1) * weights).sum();
  };
  loss().backward();
  const at::NoGradGuard no_grad;
  double wanted = 0;
  std::vector<at::Tensor> directions;
  for (const auto& item : it.model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
    directions.push_back(at::randn_like(item.value()));
    wanted += (item.value().grad() * directions.back()).sum().item<double>();
  }
  const auto move = [&](double step) {
    size_t i = 0;
    for (const at::Tensor& parameter : it.model->parameters()) at::Tensor(parameter).add_(directions[i++], step);
    it.model->parameter_set().refresh_compute();
  };
  constexpr double kStep = 2e-4;
  move(kStep);
  const double up = loss().item<double>();
  move(-2 * kStep);
  const double down = loss().item<double>();
  EXPECT_NEAR((up - down) / (2 * kStep), wanted, 0.02 * std::abs(wanted) + 0.5);
}

TEST_P(HfFamilies, AdaptersBesideAndMerged) {
  Opened it = open_folder(fixtures() / GetParam());
  nn::LoraSet lora(*it.model, adapter_of(it), at::kCPU);
  fill(lora);
  it.model->build_parameters(at::kFloat);
  const Expected want = expected_of(GetParam());
  const at::Tensor beside = logits_of(*it.model, want.ids);
  EXPECT_GT(distance(beside, want.logits), 1e-2);
  lora.merge();
  lora.set_mode(nn::LoraMode::merged);
  EXPECT_LT(distance(logits_of(*it.model, want.ids), beside), 1e-4);
  lora.set_mode(nn::LoraMode::off);
  EXPECT_LT(distance(logits_of(*it.model, want.ids), want.logits), 1e-4);

  const test::TempDir dir;
  write_peft(dir / "adapter", lora, "base");
  Opened again = open_folder(fixtures() / GetParam());
  nn::LoraSet read(*again.model, adapter_of(again), at::kCPU);
  load_peft(dir / "adapter", read);
  again.model->build_parameters(at::kFloat);
  EXPECT_TRUE(at::equal(logits_of(*again.model, want.ids), beside));
}

// The derivative in a random direction of all A, and in one of all B, by two passes and by the gradients; the base gets
// none.
TEST_P(HfFamilies, GradientsOfAdapters) {
  Opened it = open_folder(fixtures() / GetParam());
  nn::LoraSet lora(*it.model, adapter_of(it), at::kCPU);
  fill(lora);
  it.model->build_parameters(at::kFloat);
  const at::Tensor ids = expected_of(GetParam()).ids.narrow(1, 0, 24);
  at::manual_seed(3);
  const at::Tensor weights = at::randn({24, it.options.vocabulary});
  const auto loss = [&] {
    return (it.model->logits(it.model->forward({.ids = ids}).hidden).squeeze(0).log_softmax(-1) * weights).sum();
  };
  loss().backward();
  const at::NoGradGuard no_grad;
  for (const auto& item : it.model->named_parameters()) {
    if (item.value().requires_grad()) {
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
    } else {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
    }
  }
  for (const std::string part : {"gate_up", "mlp", "self_attn"}) {
    for (const std::string side : {"lora_A.weight", "lora_B.weight"}) {
      double wanted = 0;
      std::vector<at::Tensor> trained, directions;
      for (const auto& item : it.model->named_parameters()) {
        if (item.key().find(part) == std::string::npos || !item.key().ends_with(side)) continue;
        trained.push_back(item.value());
        directions.push_back(at::randn_like(item.value()));
        wanted += (item.value().grad() * directions.back()).sum().item<double>();
      }
      const auto at_step = [&](double step) {
        for (size_t i = 0; i < trained.size(); ++i) trained[i].add_(directions[i], step);
        const double value = loss().item<double>();
        for (size_t i = 0; i < trained.size(); ++i) trained[i].sub_(directions[i], step);
        return value;
      };
      const double step = side == "lora_A.weight" ? 2e-4 : 2e-5;
      EXPECT_NEAR((at_step(step) - at_step(-step)) / (2 * step), wanted, 0.02 * std::abs(wanted) + 0.5)
          << part << " " << side;
    }
  }
}

// The same as a model of the dequantised weights, beside which biases and norms stay as they are.
void expect_quantized(const std::string& name, nn::WeightFormat format, double least) {
  if (open_folder(fixtures() / name).options.experts.count > 0) {
    EXPECT_THROW(open_folder(fixtures() / name, format), Error);
    return;
  }
  Opened it = open_folder(fixtures() / name, format);
  Opened plain = open_folder(fixtures() / name);
  {
    const at::NoGradGuard no_grad;
    auto parameters = plain.model->named_parameters();
    for (const nn::QuantizedLayer& layer : nn::quantized_layers(*it.model)) {
      at::Tensor to = parameters[layer.weight];
      to.copy_(layer.linear->dequantized(at::kFloat));
    }
  }
  nn::LoraSet lora(*it.model, adapter_of(it), at::kCPU), plain_lora(*plain.model, adapter_of(plain), at::kCPU);
  fill(lora);
  fill(plain_lora);
  nn::share_quantized_workspace(*it.model, at::kFloat);
  it.model->build_parameters(at::kFloat);
  plain.model->build_parameters(at::kFloat);
  const Expected want = expected_of(name);
  const at::Tensor got = logits_of(*it.model, want.ids);
  EXPECT_LT(distance(got, logits_of(*plain.model, want.ids)), 1e-5);
  EXPECT_GT(distance(got, want.logits), least);
}

TEST_P(HfFamilies, QuantisedWeights) {
  expect_quantized(GetParam(), nn::WeightFormat::nf4, 1e-2);
  expect_quantized(GetParam(), nn::WeightFormat::fp8, 1e-4);
  expect_quantized(GetParam(), nn::WeightFormat::int8, 1e-5);
}

TEST_P(HfFamilies, WhatIsExportedIsReadAgain) {
  const Opened it = open_frozen(GetParam());
  const test::TempDir dir;
  export_hf(it.options, decoder_weights(*it.model), {.bos = 1, .eos = 2}, dir / "out",
            {.model_type = it.config.model_type});
  const Opened again = open_folder(dir / "out");
  EXPECT_EQ(again.config.model_type, it.config.model_type);
  EXPECT_EQ(again.config.rope, it.config.rope);
  EXPECT_EQ(again.config.rope_theta, it.config.rope_theta);
  EXPECT_EQ(again.config.form, it.config.form);
  EXPECT_EQ(again.config.experts, it.config.experts);
  EXPECT_EQ(again.config.intermediate_size, it.config.intermediate_size);
  EXPECT_EQ(again.config.window, it.config.window);
  EXPECT_EQ(again.config.max_position_embeddings, it.config.max_position_embeddings);
  EXPECT_EQ(again.config.tied, it.config.tied);
  const std::vector<std::string> theirs = SafetensorsSet(fixtures() / GetParam()).names();
  const std::vector<std::string> ours = SafetensorsSet(dir / "out").names();
  EXPECT_EQ(std::set<std::string>(ours.begin(), ours.end()), std::set<std::string>(theirs.begin(), theirs.end()));
  const auto wanted = it.model->named_parameters();
  for (const auto& item : again.model->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << item.key();
  }
}

// A state dict that somebody saved from memory, where transformers 5 holds the experts of a layer in one tensor.
TEST(HfExperts, StackedAsInMemoryAreRead) {
  for (const std::string name : {"qwen3_moe", "mixtral", "olmoe"}) {
    const Opened it = open_folder(fixtures() / name);
    const models::DecoderOptions& o = it.options;
    std::vector<std::pair<std::string, at::Tensor>> weights;
    const SafetensorsSet files(fixtures() / name);
    for (const auto& [key, tensor] : tensors_of(files)) {
      const bool part = key.find(".experts.") != std::string::npos || key.ends_with("gate.weight");
      if (!part) weights.emplace_back(key, tensor);
    }
    const auto parameters = it.model->named_parameters();
    for (int64_t layer = 0; layer < o.layers; ++layer) {
      if (!o.experts.has(layer)) continue;
      const std::string mlp = cat("model.layers.", layer, ".mlp.");
      const int64_t E = o.experts.count;
      weights.emplace_back(mlp + "experts.gate_up_proj", parameters[mlp + "gate_up.weight"].view({E, -1, o.width}));
      weights.emplace_back(mlp + "experts.down_proj", parameters[mlp + "down.weight"].view({E, o.width, -1}));
      weights.emplace_back(mlp + "gate.weight", parameters[mlp + "router.weight"]);
    }
    const test::TempDir dir;
    export_safetensors(weights, dir / "model.safetensors", "");
    fs::copy_file(fixtures() / name / "config.json", dir / "config.json");
    Opened again = open_folder(dir.path());
    again.model->build_frozen(at::kFloat);
    const Expected want = expected_of(name);
    EXPECT_LT(distance(logits_of(*again.model, want.ids), want.logits), 1e-4) << name;

    // Of another shape, it is named.
    for (auto& [key, tensor] : weights) {
      if (key.ends_with("experts.down_proj")) tensor = tensor.transpose(1, 2).contiguous();
    }
    fs::remove(dir / "model.safetensors");
    export_safetensors(weights, dir / "model.safetensors", "");
    try {
      open_folder(dir.path());
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("experts.down_proj' is "), std::string::npos) << error.what();
    }
  }
}

// The same bits as if they were read in float32 and rounded, and as initial values alike; adapters are float32.
TEST(HfExperts, FrozenInTheComputeDtypeFromTheStart) {
  const Expected want = expected_of("mixtral");
  Opened rounded = open_folder(fixtures() / "mixtral"),
         it = open_folder(fixtures() / "mixtral", nn::WeightFormat::f32, at::kBFloat16);
  nn::LoraSet lora(*it.model, adapter_of(it), at::kCPU), rounded_lora(*rounded.model, adapter_of(rounded), at::kCPU);
  fill(lora);
  fill(rounded_lora);
  int64_t held = 0;
  for (const auto& item : it.model->named_parameters()) {
    const bool expert = item.key().ends_with("mlp.gate_up.weight") || item.key().ends_with("mlp.down.weight");
    EXPECT_EQ(item.value().scalar_type(), expert ? at::kBFloat16 : at::kFloat) << item.key();
    held += expert ? 1 : 0;
  }
  EXPECT_EQ(held, 2 * 2);
  for (const Opened* one : {&it, &rounded}) {
    nn::keep_frozen_as(*one->model, at::kBFloat16);
    one->model->build_parameters(at::kBFloat16);
  }
  EXPECT_TRUE(at::equal(logits_of(*it.model, want.ids), logits_of(*rounded.model, want.ids)));
  nn::init_parameters(*it.model, 3);
  nn::init_parameters(*rounded.model, 3);
  EXPECT_TRUE(at::equal(logits_of(*it.model, want.ids), logits_of(*rounded.model, want.ids)));
}

// Layers without an adapter, adapters on part of the projections, and what is refused.
TEST(HfExperts, TargetsOfAdapters) {
  const Expected want = expected_of("qwen3_moe");
  const auto with = [&](std::vector<std::string> targets, const std::function<void(nn::LoraOptions&)>& change = {}) {
    Opened it = open_folder(fixtures() / "qwen3_moe");
    nn::LoraOptions options{.rank = 2, .alpha = 4, .targets = std::move(targets)};
    if (change) change(options);
    auto lora = std::make_unique<nn::LoraSet>(*it.model, options, at::kCPU);
    fill(*lora);
    it.model->build_parameters(at::kFloat);
    return std::pair{it, std::move(lora)};
  };
  for (const std::vector<std::string>& targets : std::vector<std::vector<std::string>>{
           {"up_proj"}, {"gate_proj"}, {"down_proj"}, {"up_proj", "down_proj"}, {"q_proj"}, {kAllLinear}}) {
    auto [it, lora] = with(targets);
    const at::Tensor beside = logits_of(*it.model, want.ids);
    EXPECT_GT(distance(beside, want.logits), 1e-3) << targets[0];
    lora->merge();
    lora->set_mode(nn::LoraMode::merged);
    EXPECT_LT(distance(logits_of(*it.model, want.ids), beside), 1e-4) << targets[0];
  }
  // Three projections of 5 experts in 2 layers, and those of the dense layer.
  auto [it, lora] = with({"gate_proj", "up_proj", "down_proj"});
  EXPECT_EQ(lora->pairs().size(), 2u * 5 * 3 + 3);
  std::set<std::string> names;
  for (const nn::LoraAdapter::Pair& pair : lora->pairs()) names.insert(pair.name);
  EXPECT_TRUE(names.contains("model.layers.2.mlp.experts.4.up_proj"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.gate_proj"));

  const auto refused = [&](const std::vector<std::string>& targets, const std::function<void(nn::LoraOptions&)>& change,
                           const char* part) {
    try {
      with(targets, change);
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({"experts.0.up_proj"}, {}, "an adapter is on all experts of a layer or on none");
  refused(
      {"up_proj"}, [](nn::LoraOptions& o) { o.dropout = 0.1; }, "lora.dropout=0");
  refused(
      {"up_proj"}, [](nn::LoraOptions& o) { o.dora = true; }, "lora.dora=false");
  refused({"gate"}, {},
          "no layer is called 'gate'; layers that can have an adapter: q_proj, k_proj, v_proj, o_proj, "
          "gate_proj, up_proj, down_proj");
  refused(
      {"q_proj"}, [](nn::LoraOptions& o) { o.modules_to_save = {"router"}; }, "called 'router'");
  refused(
      {"q_proj"}, [](nn::LoraOptions& o) { o.modules_to_save = {"down"}; }, "called 'down'");
}

INSTANTIATE_TEST_SUITE_P(All, HfFamilies, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

TEST(HfFamiliesTable, HasASmallModelOfEachRowAndRotation) {
  std::set<std::string> types, kinds;
  for (const std::string& name : names()) {
    const HfModelConfig config = read_hf_config(fixtures() / name);
    types.insert(config.model_type);
    kinds.emplace(hrm::name(config.rope.kind));
    uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(fixtures() / name)) bytes += file.file_size();
    EXPECT_LE(bytes, 50'000u) << name;
  }
  std::set<std::string> wanted;
  for (const HfFamily& family : hf_families()) wanted.emplace(family.model_type);
  EXPECT_EQ(types, wanted);
  EXPECT_EQ(kinds, (std::set<std::string>{"default", "linear", "dynamic", "yarn", "llama3"}));
}

// cos and sin of each kind at near and far positions, as the library's class gives them.
TEST(HfRotations, NumbersByPosition) {
  const json stored = parse_json(read_text(fixtures() / "rotations.json", ExitCode::data), "rotations", ExitCode::data);
  const auto positions = stored.at("positions").get<std::vector<int64_t>>();
  std::vector<at::Tensor> tables;
  for (const auto& [kind, wanted] : stored.at("kinds").items()) {
    json config{{"model_type", "llama"},
                {"vocab_size", 64},
                {"hidden_size", 64},
                {"num_hidden_layers", 1},
                {"num_attention_heads", 4},
                {"intermediate_size", 64},
                {"max_position_embeddings", stored.at("max_position_embeddings")},
                {"rope_theta", stored.at("theta")},
                {"rope_scaling", wanted.at("rope_parameters")}};
    const HfModelConfig c = parse_hf_config(config.dump(), "", "c.json");
    ASSERT_EQ(c.head_dim, stored.at("head_dim").get<int64_t>());
    const nn::RotaryTable table =
        nn::make_rotary_table(c.max_position_embeddings, c.head_dim, c.rope_theta, at::kCPU, c.rope);
    for (size_t i = 0; i < positions.size(); ++i) {
      const double tolerance = 1e-6 + 2e-7 * static_cast<double>(positions[i]);
      const auto close = [&](const at::Tensor& got, const char* part) {
        const at::Tensor want = at::tensor(wanted.at(part)[i].get<std::vector<float>>());
        EXPECT_LT(distance(got[positions[i]], want), tolerance) << kind << " " << part << " at " << positions[i];
      };
      close(table.cos, "cos");
      close(table.sin, "sin");
    }
    tables.push_back(table.cos.narrow(0, 255, 1).clone());
  }
  // Kinds differ where they should: all but "dynamic", which is as "default" within the trained length.
  EXPECT_EQ(tables.size(), 8u);
  int64_t same = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    for (size_t j = 0; j < i; ++j) same += distance(tables[i], tables[j]) < 1e-4 ? 1 : 0;
  }
  EXPECT_EQ(same, 1);
}

}  // namespace
}  // namespace hrm::checkpoint
