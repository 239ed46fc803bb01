// Folders of transformers into our decoder: what export_hf writes, in shards, in other types; what does not fit.
#include "hrm/checkpoint/hf_import.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "hf_cases.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/linear.h"
#include "hrm/state/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/nested_pt.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using models::DecoderLm;
using test::expect_error;
using Tensors = std::map<std::string, at::Tensor>;

void write_tensors(const fs::path& file, const Tensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(tensor)});
  }
  write_safetensors(file, entries, {{"format", "pt"}});
}

std::shared_ptr<DecoderLm> empty_decoder(const models::DecoderOptions& options) {
  const auto model = std::make_shared<DecoderLm>(options, at::kCPU);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) at::Tensor(parameter).fill_(NAN);
  return model;
}

void expect_equal_weights(const torch::nn::Module& got, const torch::nn::Module& want) {
  const auto wanted = want.named_parameters();
  ASSERT_EQ(got.named_parameters().size(), wanted.size());
  for (const auto& item : got.named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << item.key();
  }
}

TEST(HfImport, GivesBackWhatWasExported) {
  const test::TempDir dir;
  for (const HfCase& c : hf_cases()) {
    const auto model = hf_decoder(c.options);
    export_hf(c.options, decoder_weights(*model), {.eos = 7}, dir / c.name);
    const HfModelConfig config = read_hf_config(dir / c.name);
    const models::DecoderOptions o = decoder_options_of(config, 31);
    EXPECT_EQ(o.positions, 31);
    EXPECT_EQ(o.window, c.options.window) << c.name;
    EXPECT_EQ(o.qk_norm, c.options.qk_norm) << c.name;
    EXPECT_EQ(o.tied, c.options.tied) << c.name;
    EXPECT_EQ(o.rope_theta, 5000);
    EXPECT_EQ(o.eps, 1e-5);
    EXPECT_EQ(config.eos_ids, std::vector<int64_t>{7});
    const auto got = empty_decoder(o);
    load_hf_weights(SafetensorsSet(dir / c.name), o, *got);
    expect_equal_weights(*got, *model);
  }
}

// Only says which part of the model a process holds.
struct PartOnly : nn::TensorAcross {
  explicit PartOnly(const nn::Cut& cut) : own(cut) {}
  nn::Cut cut() const override { return own; }
  at::Tensor enter(const at::Tensor&, int64_t) const override { return {}; }
  ops::Pieces leave(const at::Tensor&) const override { return {}; }
  at::Tensor enter_whole(const at::Tensor&, int64_t) const override { return {}; }
  at::Tensor share(const at::Tensor&) const override { return {}; }
  at::Tensor gather(const at::Tensor&) const override { return {}; }
  std::unique_ptr<nn::Moving> start_gather(const at::Tensor&, const at::Tensor&) const override { return nullptr; }
  std::unique_ptr<nn::Moving> start_exchange(const at::Tensor&, const at::Tensor&) const override { return nullptr; }

  nn::Cut own;
};

TEST(HfImport, PartsOfAModel) {
  const test::TempDir dir;
  int64_t cut_cases = 0;
  for (const HfCase& c : hf_cases()) {
    const DecoderForm& form = c.options.form;
    if (form.wide_qk_norm || form.norms_behind || c.options.experts.count > 0) continue;
    ++cut_cases;
    const auto model = hf_decoder(c.options);
    export_hf(c.options, decoder_weights(*model), {}, dir / c.name);
    models::DecoderOptions o = decoder_options_of(read_hf_config(dir / c.name), 31);
    for (int64_t part = 0; part < 2; ++part) {
      o.across = std::make_shared<PartOnly>(nn::Cut{.part = part, .parts = 2});
      const auto got = empty_decoder(o);
      load_hf_weights(SafetensorsSet(dir / c.name), o, *got);
      const nn::ParameterCuts cuts(*got);
      const auto whole = model->named_parameters();
      for (const auto& item : got->named_parameters()) {
        const nn::ParameterCut cut = cuts.of(item.value());
        EXPECT_NE(cut.whole(), item.key().find("norm") == std::string::npos) << item.key();
        EXPECT_TRUE(at::equal(item.value(), cut.part_of(whole[item.key()]))) << c.name << " " << item.key();
      }
    }
  }
  EXPECT_GE(cut_cases, 4);
}

// The weights of a small model as transformers has them, and a folder to put them.
class HfWeights : public testing::Test {
 protected:
  explicit HfWeights(size_t which = 0) : case_(hf_cases()[which]), model_(hf_decoder(case_.options)) {
    export_hf(case_.options, decoder_weights(*model_), {}, dir_ / "whole");
    theirs_ = tensors_of(SafetensorsSet(dir_ / "whole"));
    fs::create_directory(dir_ / "other");
  }
  std::shared_ptr<DecoderLm> load() {
    write_tensors(dir_ / "other" / "model.safetensors", theirs_);
    const auto got = empty_decoder(case_.options);
    load_hf_weights(SafetensorsSet(dir_ / "other"), case_.options, *got);
    return got;
  }
  void refused(const std::vector<std::string>& parts) {
    expect_error(ExitCode::checkpoint, parts, [&] { load(); });
  }

  test::TempDir dir_;
  HfCase case_;
  std::shared_ptr<DecoderLm> model_;
  Tensors theirs_;
};

TEST_F(HfWeights, PartsOfOneWeightFromSeveralShards) {
  nlohmann::json map;
  std::vector<Tensors> shards(3);
  size_t at = 0;
  for (const auto& [name, tensor] : theirs_) {
    const size_t shard = at++ % shards.size();
    shards[shard].emplace(name, tensor);
    map[name] = cat("model-", shard, ".safetensors");
  }
  for (size_t i = 0; i < shards.size(); ++i)
    write_tensors(dir_ / "other" / cat("model-", i, ".safetensors"), shards[i]);
  write_file(dir_ / "other" / "model.safetensors.index.json",
             as_bytes(nlohmann::json{{"metadata", {}}, {"weight_map", map}}.dump()));
  const auto got = empty_decoder(case_.options);
  load_hf_weights(SafetensorsSet(dir_ / "other"), case_.options, *got);
  expect_equal_weights(*got, *model_);
}

// Names as wrappers, other classes of the library and own loops save them.
TEST_F(HfWeights, OtherNames) {
  const Tensors before = theirs_;
  const auto expect_read = [&](const std::function<std::string(const std::string&)>& rename) {
    theirs_.clear();
    for (const auto& [name, tensor] : before) theirs_[rename(name)] = tensor;
    expect_equal_weights(*load(), *model_);
  };
  expect_read([](const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; });
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model."}) {
    expect_read([&](const std::string& name) { return prefix + name; });
  }
  expect_read([](std::string name) {
    const size_t at = name.find(".mlp.");
    return at == std::string::npos ? name : name.insert(at, "._orig_mod");
  });
  theirs_ = before;
  theirs_["module.model.norm.weight"] = before.at("model.norm.weight");
  refused({"'model.norm.weight' and 'module.model.norm.weight'"});
}

TEST_F(HfWeights, AreNamedWhereNoneIsKnown) {
  const Tensors before = std::exchange(theirs_, {});
  for (const auto& [name, tensor] : before) theirs_["net." + name] = tensor;
  refused({"holds ", " tensors, 'net.model.embed_tokens.weight', ", "such as 'model.embed_tokens.weight'"});
}

// Folders of 8-bit weights: their bytes in layers of the same format, their values in layers of floats.
TEST(HfImport, WeightsIn8Bits) {
  for (const HfCase& c : hf_cases()) {
    for (const nn::WeightFormat format : {nn::WeightFormat::fp8, nn::WeightFormat::int8}) {
      const test::TempDir dir;
      const bool fp8 = format == nn::WeightFormat::fp8;
      const auto model = hf_decoder(c.options);
      export_hf(c.options, decoder_weights(*model), {.eos = 7}, dir / "out", {.dtype = at::kFloat, .weights = format});
      const HfModelConfig config = read_hf_config(dir / "out");
      ASSERT_EQ(config.stored, fp8 ? HfStoredWeights::fp8 : HfStoredWeights::int8) << c.name;
      const SafetensorsSet files(dir / "out");
      const ArrayView& values = files.at("model.layers.0.mlp.up_proj.weight");
      EXPECT_EQ(values.dtype, fp8 ? DType::f8_e4m3 : DType::i8);
      EXPECT_EQ(files.at("model.layers.0.mlp.up_proj.weight_scale").shape, (std::vector<int64_t>{values.shape[0], 1}));
      models::DecoderOptions options = decoder_options_of(config, 31);
      const auto floats = empty_decoder(options);
      load_hf_weights(files, options, *floats, /*untie=*/false, config.stored);
      options.weights = format;
      const auto held = empty_decoder(options);
      load_hf_weights(files, options, *held, /*untie=*/false, config.stored);
      auto got = floats->named_parameters();
      auto want = model->named_parameters();
      const auto layers = nn::quantized_layers(*held);
      EXPECT_FALSE(layers.empty());
      const at::NoGradGuard no_grad;
      for (const nn::QuantizedLayer& layer : layers) {
        const ops::Weight8 own = ops::quantize_weight8(want[layer.weight], fp8 ? at::kFloat8_e4m3fn : at::kChar);
        EXPECT_TRUE(at::equal(layer.linear->weight8().values.view(at::kByte), own.values.view(at::kByte)));
        EXPECT_TRUE(at::equal(layer.linear->weight8().scales, own.scales)) << layer.weight;
        EXPECT_TRUE(at::equal(got[layer.weight], layer.linear->dequantized(at::kFloat))) << layer.weight;
      }
      for (const auto& item : model->named_parameters()) {
        if (held->named_parameters()[item.key()].is_meta()) continue;
        EXPECT_TRUE(at::equal(got[item.key()], item.value())) << item.key();
      }
      options.weights = fp8 ? nn::WeightFormat::int8 : nn::WeightFormat::fp8;
      const auto other = empty_decoder(options);
      expect_error(ExitCode::usage, {"are stored as ", fp8 ? "hf.quantize=fp8" : "hf.quantize=int8"},
                   [&] { load_hf_weights(files, options, *other, /*untie=*/false, config.stored); });
    }
  }
}

// Some parts of a fused layer are not in 8 bits; scales that do not fit.
TEST(HfImport, MixedAndDamagedWeightsIn8Bits) {
  const HfCase c = hf_cases()[0];
  const auto model = hf_decoder(c.options);
  const test::TempDir dir;
  export_hf(c.options, decoder_weights(*model), {.eos = 7}, dir / "out",
            {.dtype = at::kFloat, .weights = nn::WeightFormat::int8});
  const HfModelConfig config = read_hf_config(dir / "out");
  const Tensors before = tensors_of(SafetensorsSet(dir / "out"));
  const std::string up = "model.layers.0.mlp.up_proj.weight", scale = up + "_scale";
  const auto loaded = [&](const Tensors& tensors) {
    write_tensors(dir / "out/model.safetensors", tensors);
    models::DecoderOptions options = decoder_options_of(config, 31);
    options.weights = nn::WeightFormat::int8;
    const auto held = empty_decoder(options);
    load_hf_weights(SafetensorsSet(dir / "out"), options, *held, /*untie=*/false, config.stored);
    return held;
  };
  const auto whole = loaded(before);
  Tensors tensors = before;
  tensors[up] = (before.at(up).to(at::kFloat) * before.at(scale)).contiguous();
  tensors.erase(scale);
  const auto mixed = loaded(tensors);
  const auto a = nn::quantized_layers(*whole), b = nn::quantized_layers(*mixed);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].linear->weight8().values, b[i].linear->weight8().values)) << a[i].weight;
  }
  const auto refused = [&](const std::string& name, const at::Tensor& tensor, const std::vector<std::string>& parts) {
    tensors = before;
    if (tensor.defined()) {
      tensors[name] = tensor;
    } else {
      tensors.erase(name);
    }
    expect_error(ExitCode::checkpoint, parts, [&] { loaded(tensors); });
  };
  refused(scale, at::Tensor(), {cat("'", up, "' is I8, no floating-point type")});
  refused(scale, at::ones({3, 1}), {cat("'", scale, "' is [3, 1], not ")});
  refused(scale, at::ones(before.at(scale).sizes(), at::kInt), {cat("'", scale, "' is I32")});
  refused(up, before.at(up).to(at::kFloat), {cat("'", up, "' is F32, but config.json says I8")});
  at::Tensor infinite = before.at(scale).clone();
  infinite[0] = INFINITY;
  refused(scale, infinite, {"contains values that are not finite"});
}

TEST_F(HfWeights, QuantisedOnesAreNamed) {
  const Tensors before = theirs_;
  for (const auto& [end, method] : {std::pair{".qweight", "GPTQ or AWQ"},
                                    {".weight.absmax", "bitsandbytes"},
                                    {".weight_scale_inv", "FP8"},
                                    {".weight_packed", "compressed-tensors"}}) {
    theirs_ = before;
    const std::string name = cat("model.layers.0.mlp.up_proj", end);
    theirs_[name] = at::ones({2});
    refused({"are quantised (", method, name, "hf.quantize=nf4"});
  }
}

// Weights that torch.save has written, alone and inside a dict.
TEST_F(HfWeights, OfTorchSave) {
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : theirs_) {
    entries.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(tensor)});
  }
  const auto flat = build_torch_state_dict(entries);
  for (const auto& bytes : {flat, test::nested_pt(flat, "model")}) {
    write_file(dir_ / "other" / "pytorch_model.bin", bytes);
    const auto got = empty_decoder(case_.options);
    load_hf_weights(SafetensorsSet(dir_ / "other"), case_.options, *got);
    expect_equal_weights(*got, *model_);
  }
}

TEST_F(HfWeights, OtherTypesBecomeTheParameters) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const Tensors before = theirs_;
    for (auto& [name, tensor] : theirs_) tensor = tensor.to(type);
    const auto got = load();
    const auto wanted = model_->named_parameters();
    for (const auto& item : got->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(item.value(), wanted[item.key()].to(type).to(at::kFloat))) << item.key();
    }
    theirs_ = before;
  }
}

TEST_F(HfWeights, ParametersInBfloat16) {
  write_tensors(dir_ / "other" / "model.safetensors", theirs_);
  const auto got = empty_decoder(case_.options);
  got->to(at::kBFloat16);
  load_hf_weights(SafetensorsSet(dir_ / "other"), case_.options, *got);
  const auto wanted = model_->named_parameters();
  for (const auto& item : got->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), wanted[item.key()].to(at::kBFloat16))) << item.key();
  }
}

TEST_F(HfWeights, HeadOfATiedModel) {
  ASSERT_TRUE(case_.options.tied);
  const at::Tensor embedding = theirs_.at("model.embed_tokens.weight");
  theirs_["lm_head.weight"] = embedding.clone();
  theirs_["model.rotary_emb.inv_freq"] = at::ones({4});
  expect_equal_weights(*load(), *model_);
  theirs_["lm_head.weight"] = embedding + 1;
  refused({"a head that is not its embedding"});
  theirs_["lm_head.weight"] = embedding.narrow(0, 0, 3).clone();
  refused({"a head that is not its embedding"});
  theirs_["lm_head.weight"] = at::zeros({1, 1});
  refused({"a head that is not its embedding"});
  theirs_["lm_head.weight"] = at::zeros(embedding.sizes(), at::kInt);
  refused({"a head that is not its embedding"});
  theirs_["lm_head.weight"] = embedding.to(at::kBFloat16);
  refused({"a head that is not its embedding"});
  theirs_["lm_head.weight"] = embedding.to(at::kDouble);
  expect_equal_weights(*load(), *model_);
}

TEST_F(HfWeights, AllContradictionsInOneSentence) {
  theirs_.erase("model.layers.1.self_attn.k_proj.weight");
  theirs_["model.layers.0.mlp.up_proj.weight"] = at::ones({41, 24});
  theirs_["model.norm.weight"] = at::ones({24}, at::kLong);
  theirs_["model.layers.0.self_attn.q_proj.bias"] = at::ones({32});
  refused({"'model.layers.1.self_attn.k_proj.weight' is missing", "'model.layers.0.mlp.up_proj.weight' is ",
           "'model.norm.weight' is ", "no floating-point type", "'model.layers.0.self_attn.q_proj.bias' is unknown"});
}

TEST_F(HfWeights, ManyContradictionsAreCounted) {
  const size_t all = theirs_.size();
  for (auto& [name, tensor] : theirs_) tensor = at::ones({1});
  // Two norms have one dimension, but also another length: every tensor is wrong.
  refused({"model.embed_tokens.weight", cat(" and ", all - 8, " more")});
}

TEST_F(HfWeights, NothingChangesWhereOneTensorIsWrong) {
  theirs_.erase("model.norm.weight");
  write_tensors(dir_ / "other" / "model.safetensors", theirs_);
  const auto got = empty_decoder(case_.options);
  expect_error(ExitCode::checkpoint, {"'model.norm.weight' is missing"},
               [&] { load_hf_weights(SafetensorsSet(dir_ / "other"), case_.options, *got); });
  for (const at::Tensor& parameter : got->parameters()) EXPECT_TRUE(parameter.isnan().all().item<bool>());
}

class UntiedHfWeights : public HfWeights {
 protected:
  UntiedHfWeights() : HfWeights(3) {}
};

TEST_F(UntiedHfWeights, NeedTheirHead) {
  expect_equal_weights(*load(), *model_);
  theirs_.erase("lm_head.weight");
  refused({"'lm_head.weight' is missing"});
}

}  // namespace
}  // namespace hrm::checkpoint
