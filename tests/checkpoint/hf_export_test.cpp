// Our decoder as a folder for transformers: architecture, numbers, names and rows; what has no architecture is refused.
#include "checkpoint/hf_export.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "hf_cases.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/config/load.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/nn/moe.h"
#include "hrm/state/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

TEST(HfModel, ArchitectureAndNumbers) {
  for (const HfCase& c : hf_cases()) {
    const HfModel got = hf_model(c.options, decoder_weights(*hf_decoder(c.options)), {.eos = 7, .pad = 0});
    EXPECT_EQ(got.config.at("architectures"), nlohmann::ordered_json({c.architecture})) << c.name;
    EXPECT_EQ(got.config.at("num_key_value_heads"), 2);
    EXPECT_EQ(got.config.at("head_dim"), 8);
    EXPECT_EQ(got.config.at("intermediate_size"), 40);
    EXPECT_EQ(got.config.at("rope_theta"), 5000);
    EXPECT_EQ(got.config.at("rms_norm_eps"), 1e-5);
    EXPECT_EQ(got.config.at("tie_word_embeddings"), c.options.tied);
    EXPECT_EQ(got.config.value("sliding_window", 0), c.options.window) << c.name;
    EXPECT_EQ(got.config.value("use_sliding_window", false), c.options.window > 0 && c.options.qk_norm) << c.name;
    EXPECT_EQ(got.config.at("eos_token_id"), 7);
    EXPECT_TRUE(got.config.at("bos_token_id").is_null()) << "no default of theirs";
    EXPECT_EQ(got.generation.dump(), R"({"eos_token_id":7,"pad_token_id":0})");
  }
}

TEST(HfModel, RowsOfJoinedWeights) {
  const HfCase c = hf_cases()[1];
  const auto model = hf_decoder(c.options);
  const NamedTensors weights = decoder_weights(*model);
  const NamedTensors got = hf_model(c.options, weights, {}).weights;
  const std::map<std::string, at::Tensor> ours(weights.begin(), weights.end()), theirs(got.begin(), got.end());
  EXPECT_EQ(got.size(), theirs.size()) << "each name once";
  EXPECT_EQ(theirs.size(), weights.size() + 2 * 3) << "in each layer three more";
  const std::string at = "model.layers.1.";
  const at::Tensor qkv = ours.at(at + "self_attn.qkv_proj.weight"), gate_up = ours.at(at + "mlp.gate_up_proj.weight");
  EXPECT_TRUE(at::equal(theirs.at(at + "self_attn.q_proj.weight"), qkv.narrow(0, 0, 32)));
  EXPECT_TRUE(at::equal(theirs.at(at + "self_attn.k_proj.weight"), qkv.narrow(0, 32, 16)));
  EXPECT_TRUE(at::equal(theirs.at(at + "self_attn.v_proj.weight"), qkv.narrow(0, 48, 16)));
  EXPECT_TRUE(at::equal(theirs.at(at + "mlp.gate_proj.weight"), gate_up.narrow(0, 0, 40)));
  EXPECT_TRUE(at::equal(theirs.at(at + "mlp.up_proj.weight"), gate_up.narrow(0, 40, 40)));
  EXPECT_TRUE(at::equal(theirs.at("lm_head.weight"), ours.at("model.lm_head.weight")));
  EXPECT_TRUE(at::equal(theirs.at(at + "mlp.down_proj.weight"), ours.at(at + "mlp.down_proj.weight")));
}

TEST(HfModel, WhatHasNoArchitectureIsRefused) {
  models::DecoderOptions o = hf_cases()[0].options;
  o.feed_forward = [](int64_t) {
    return std::make_shared<nn::MoeFeedForward>(24, nn::MoeOptions{.experts = 2, .inner = 8}, at::kCPU);
  };
  expect_error(ExitCode::usage, {"mixture of experts", "--to safetensors or --to torchscript"},
               [&] { hf_model(o, decoder_weights(*hf_decoder(o)), {}); });
  expect_error(ExitCode::usage, {"HRM language model", "enc.norm.weight", "--to safetensors or --to torchscript"}, [&] {
    hf_model(hf_cases()[0].options, {{"enc.norm.weight", at::ones({2})}}, {});
  });
}

// A decoder of our own with experts that a family has: the folder gives the same logits again.
TEST(HfModel, ExpertsOfOurDecoder) {
  using Overrides = std::vector<std::string>;
  const auto config_of = [](const Overrides& more) {
    Overrides all{"task=language", "lm.arch=decoder",     "lm.hidden_size=32",   "lm.num_heads=4",
                  "lm.layers=4",   "moe.experts=5",       "moe.top_k=2",         "moe.activation=swiglu",
                  "moe.inner=24",  "moe.load_weight=0.5", "data.encoder_len=11", "data.decoder_len=9"};
    all.insert(all.end(), more.begin(), more.end());
    return config::load_config({}, all).config;
  };
  const models::LanguageSizes sizes{.vocabulary = 60, .encoder_len = 11, .decoder_len = 9};
  const auto exported = [&](const config::Config& config, const fs::path& folder) {
    const auto model = models::make_language_model(config, sizes, /*seed=*/5, at::kCPU, at::kFloat);
    export_hf(models::family_decoder_options(config, sizes), decoder_weights(*model), {.eos = 2}, folder);
    return model;
  };
  const std::vector<std::pair<Overrides, std::string>> cases = {
      {{"lm.qk_norm=true"}, "qwen3_moe"},
      {{"lm.qk_norm=true", "moe.normalize=true", "moe.every=2", "lm.tied=true"}, "qwen3_moe"},
      {{"moe.normalize=true", "lm.window=6"}, "mixtral"}};
  for (const auto& [overrides, family] : cases) {
    const test::TempDir dir;
    const auto model = exported(config_of(overrides), dir / "out");
    const HfModelConfig read = read_hf_config(dir / "out");
    EXPECT_EQ(read.model_type, family);
    EXPECT_EQ(read.experts.load_weight, 0.5);
    EXPECT_EQ(read.experts.dense_layers.size(), overrides.size() == 4 ? 2u : 0u);
    const models::DecoderOptions options = decoder_options_of(read, 20);
    const auto again = std::make_shared<models::DecoderLm>(options, at::kCPU);
    load_hf_weights(SafetensorsSet(dir / "out"), options, *again);
    again->build_frozen(at::kFloat);
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::randint(60, {2, 17}, at::kLong);
    EXPECT_TRUE(at::allclose(again->logits(again->forward({.ids = ids}).hidden),
                             model->logits(model->forward({.ids = ids}).hidden), 1e-5, 1e-5))
        << family;
  }
  const test::TempDir dir;
  for (const std::string more : {"moe.score=sigmoid", "moe.capacity_factor=1", "moe.bias_rate=0.01",
                                 "moe.shared_experts=1", "moe.activation=gelu"}) {
    expect_error(ExitCode::usage, {"SwiGLU experts with softmax scores"}, [&] {
      exported(config_of({"lm.qk_norm=true", more}), dir / "out");
    });
  }
  expect_error(ExitCode::usage, {"no architecture of transformers computes what this model does"},
               [&] { exported(config_of({"moe.normalize=false"}), dir / "out"); });
}

TEST(HfModel, WeightsOfAnotherModel) {
  models::DecoderOptions o = hf_cases()[0].options;
  const NamedTensors weights = decoder_weights(*hf_decoder(o));
  o.layers = 3;
  expect_error(ExitCode::checkpoint, {"lacks 'model.layers.2."}, [&] { hf_model(o, weights, {}); });
  o.layers = 1;
  expect_error(ExitCode::checkpoint, {"holds 'model.layers.1."}, [&] { hf_model(o, weights, {}); });
  o.layers = 2;
  o.inner = 48;
  expect_error(ExitCode::checkpoint, {"mlp.gate_up_proj.weight' has shape [80, 24]", "[96, 24]"},
               [&] { hf_model(o, weights, {}); });
}

TEST(HfFolder, AllOfItOrNothing) {
  const HfCase c = hf_cases()[0];
  const NamedTensors weights = decoder_weights(*hf_decoder(c.options));
  const test::TempDir dir;
  const fs::path tokenizer = fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json";
  export_hf(c.options, weights, {.eos = 1500, .eos_text = "<|endoftext|>", .tokenizer = tokenizer}, dir / "a/b");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "a"), {}), 1) << "no temporary folder";
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_TRUE(fs::exists(dir / "a/b" / name)) << name;
  }
  EXPECT_EQ(fs::file_size(dir / "a/b/tokenizer.json"), fs::file_size(tokenizer));
  const SafetensorsFile file(dir / "a/b/model.safetensors");
  const ArrayView& norm = file.at("model.norm.weight");
  EXPECT_TRUE(at::equal(tensor_from_bytes(norm.dtype, norm.shape, norm.bytes), weights.back().second));
  std::ifstream config(dir / "a/b/tokenizer_config.json");
  EXPECT_EQ(nlohmann::json::parse(config).at("eos_token"), "<|endoftext|>");

  expect_error(ExitCode::environment, {"a/b", "exists already"},
               [&] { export_hf(c.options, weights, {}, dir / "a/b"); });
  expect_error(ExitCode::data, {"none.json"},
               [&] { export_hf(c.options, weights, {.tokenizer = dir / "none.json"}, dir / "c"); });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1) << "what failed leaves nothing";
  fs::create_directory(dir / "empty");
  export_hf(c.options, weights, {}, dir / "empty/");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "empty"), {}), 3) << "no tokenizer, no file about it";
}

TEST(HfFolder, LargeWeightsAreCutIntoShards) {
  EXPECT_EQ(shard_counts({4, 4, 4, 4, 4}, 8), (std::vector<size_t>{2, 2, 1}));
  EXPECT_EQ(shard_counts({3, 20, 1, 1}, 8), (std::vector<size_t>{1, 1, 2})) << "one tensor that is too large";
  EXPECT_EQ(shard_counts({8}, 8), std::vector<size_t>{1});
  EXPECT_EQ(shard_counts({}, 8), std::vector<size_t>{0}) << "one file, though empty";

  const HfCase c = hf_cases()[3];
  const NamedTensors weights = decoder_weights(*hf_decoder(c.options));
  const test::TempDir dir;
  constexpr uint64_t kMost = 40'000;  // embedding and head take more
  export_hf(c.options, weights, {}, dir / "whole");
  export_hf(c.options, weights, {}, dir / "cut", {.shard_bytes = kMost});
  EXPECT_FALSE(fs::exists(dir / "whole/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(dir / "cut/model.safetensors"));
  std::ifstream text(dir / "cut/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(text);
  const std::string count = "-of-00004.safetensors";
  const SafetensorsSet whole(dir / "whole"), cut(dir / "cut");  // cut: checked against its index
  ASSERT_EQ(cut.names(), whole.names());
  uint64_t total = 0;
  for (const std::string& name : whole.names()) {
    const ArrayView &a = whole.at(name), &b = cut.at(name);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end())) << name;
    EXPECT_TRUE(index.at("weight_map").at(name).get<std::string>().ends_with(count)) << index.dump();
    total += b.bytes.size();
  }
  EXPECT_EQ(index.at("metadata").at("total_size"), total);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "cut"), {}), 4 + 3);
  for (int shard = 1; shard <= 4; ++shard) {
    const SafetensorsFile file(dir / cat("cut/model-0000", shard, count));
    uint64_t bytes = 0;
    for (const std::string& name : file.names()) bytes += file.at(name).bytes.size();
    EXPECT_TRUE(bytes <= kMost || file.names().size() == 1) << shard;
  }
}

TEST(HfFolder, TypeOfTheWeights) {
  const HfCase c = hf_cases()[0];
  NamedTensors weights = decoder_weights(*hf_decoder(c.options));
  const test::TempDir dir;
  const auto check = [&](const std::string& folder, DType want, const char* said) {
    const SafetensorsSet set(dir / folder);
    for (const std::string& name : set.names()) EXPECT_EQ(set.at(name).dtype, want) << name;
    std::ifstream config(dir / folder / "config.json");
    EXPECT_EQ(nlohmann::json::parse(config).at("torch_dtype"), said);
    const ArrayView& norm = set.at("model.norm.weight");
    const at::Tensor got = tensor_from_bytes(norm.dtype, norm.shape, norm.bytes);
    EXPECT_TRUE(at::equal(got, weights.back().second.to(got.scalar_type())));
  };
  export_hf(c.options, weights, {}, dir / "low", {.dtype = at::kBFloat16});
  check("low", DType::bf16, "bfloat16");
  // A base that is kept in bfloat16, exported as float32: the files must hold what config.json says.
  for (auto& [name, tensor] : weights) tensor = tensor.to(at::kBFloat16);
  export_hf(c.options, weights, {}, dir / "high");
  check("high", DType::f32, "float32");
  expect_error(ExitCode::usage, {"float32 or bfloat16, not Half"},
               [&] { export_hf(c.options, weights, {}, dir / "half", {.dtype = at::kHalf}); });
  EXPECT_FALSE(fs::exists(dir / "half"));
}

TEST(LanguageFiles, OurNamesInEveryFormat) {
  const HfCase c = hf_cases()[0];
  const NamedTensors weights = decoder_weights(*hf_decoder(c.options));
  const test::TempDir dir;
  export_safetensors(weights, dir / "a.safetensors", /*prefix=*/"");
  export_pt(weights, dir / "a.pt", /*prefix=*/"");
  const SafetensorsFile safetensors(dir / "a.safetensors");
  const TorchArchive pt(dir / "a.pt");
  for (const auto& [name, tensor] : weights) {
    const ArrayView& in_safetensors = safetensors.at(name);
    EXPECT_TRUE(at::equal(tensor_from_bytes(in_safetensors.dtype, in_safetensors.shape, in_safetensors.bytes), tensor));
    const NamedTensor& entry = pt.at(name);
    EXPECT_TRUE(at::equal(tensor_from_bytes(entry.dtype, entry.shape, entry.bytes), tensor)) << name;
  }
  EXPECT_EQ(safetensors.names().size(), weights.size());
  EXPECT_EQ(pt.tensors().size(), weights.size());
}

}  // namespace
}  // namespace hrm::checkpoint
