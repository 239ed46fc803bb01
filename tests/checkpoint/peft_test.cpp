// Adapters in folders of PEFT: written and read again, bit by bit; one that PEFT wrote; what is refused.
#include "hrm/checkpoint/peft.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "hf_cases.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/data/text_pattern.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;

const fs::path kFixture = test::source_dir() + "/tests/fixtures/lora";

struct Adapted {
  std::shared_ptr<models::DecoderLm> model;
  std::unique_ptr<nn::LoraSet> lora;

  explicit Adapted(const nn::LoraOptions& options, const models::DecoderOptions& decoder = hf_cases()[3].options)
      : model(hf_decoder(decoder)), lora(std::make_unique<nn::LoraSet>(*model, options, at::kCPU)) {
    const at::NoGradGuard no_grad;
    for (const nn::LoraAdapter::Pair& pair : lora->pairs()) {
      pair.A.normal_();
      pair.B.normal_();
    }
  }
};

void expect_same_pairs(const nn::LoraSet& got, const nn::LoraSet& want) {
  const auto a = got.pairs(), b = want.pairs();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(at::equal(a[i].A, b[i].A)) << a[i].name;
    EXPECT_TRUE(at::equal(a[i].B, b[i].B)) << a[i].name;
  }
}

json read_json(const fs::path& file) {
  std::ifstream in(file);
  return json::parse(in);
}

TEST(Peft, ReadsBackWhatItWrote) {
  const test::TempDir dir;
  const std::vector<nn::LoraOptions> all = {{.rank = 3, .alpha = 6},
                                            {.rank = 2, .alpha = 1.5, .rslora = true, .targets = {"v_proj", "q_proj"}},
                                            {.rank = 1, .alpha = 4, .dropout = 0.25, .targets = {"up_proj"}}};
  for (size_t i = 0; i < all.size(); ++i) {
    const Adapted one(all[i]), other(all[i]);
    const fs::path folder = dir / std::to_string(i);
    write_peft(folder, *one.lora, "some/model");
    const PeftConfig config = read_peft_config(folder);
    EXPECT_EQ(config.r, all[i].rank);
    EXPECT_EQ(config.alpha, all[i].alpha);
    EXPECT_EQ(config.dropout, all[i].dropout);
    EXPECT_EQ(config.rslora, all[i].rslora);
    EXPECT_EQ(config.base_model, "some/model");
    EXPECT_EQ(config.targets.size(), all[i].targets.size());
    load_peft(folder, *other.lora);
    expect_same_pairs(*other.lora, *one.lora);
  }
}

// Names, shapes and values of the file that PEFT has written for the same adapter.
TEST(Peft, WritesTheFileThatPeftWrites) {
  const HfModelConfig base = read_hf_config(kFixture / "../qwen3_tied");
  const Adapted adapted({.rank = 8, .alpha = 16}, decoder_options_of(base, 64));
  load_peft(kFixture, *adapted.lora);
  const test::TempDir dir;
  write_peft(dir / "a", *adapted.lora, "qwen3_tied");
  const SafetensorsFile want(kFixture / "adapter_model.safetensors"), got(dir / "a" / "adapter_model.safetensors");
  EXPECT_EQ(std::set<std::string>(got.names().begin(), got.names().end()),
            std::set<std::string>(want.names().begin(), want.names().end()));
  for (const std::string& name : want.names()) {
    EXPECT_EQ(got.at(name).shape, want.at(name).shape) << name;
    EXPECT_EQ(got.at(name).dtype, want.at(name).dtype) << name;
    EXPECT_EQ(as_text(got.at(name).bytes), as_text(want.at(name).bytes)) << name;
  }
  EXPECT_EQ(got.metadata(), want.metadata());
  const json theirs = read_json(kFixture / "adapter_config.json"), ours = read_json(dir / "a" / "adapter_config.json");
  for (const auto& item : ours.items()) {
    ASSERT_TRUE(theirs.contains(item.key())) << "a key that PEFT does not know: " << item.key();
    if (item.key() == "target_modules") continue;  // a set there
    EXPECT_EQ(item.value(), theirs.at(item.key())) << item.key();
  }
}

// A folder of a small adapter whose files a test changes.
class PeftFolder : public testing::Test {
 protected:
  PeftFolder() : adapted_({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}}) {
    write_peft(dir_ / "a", *adapted_.lora, "base");
    config_ = read_json(dir_ / "a" / "adapter_config.json");
    const SafetensorsFile file(dir_ / "a" / "adapter_model.safetensors");
    for (const std::string& name : file.names()) {
      const ArrayView& view = file.at(name);
      weights_[name] = tensor_from_bytes(view.dtype, view.shape, view.bytes);
    }
  }
  void refused(const json& changes, const std::vector<std::string>& parts) {
    json config = config_;
    for (const auto& item : changes.items()) config[item.key()] = item.value();
    write_file(dir_ / "a" / "adapter_config.json", as_bytes(config.dump()));
    expect_error(ExitCode::checkpoint, parts, [&] { read_peft_config(dir_ / "a"); });
  }
  void write_weights() {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : weights_) {
      entries.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(tensor)});
    }
    write_safetensors(dir_ / "a" / "adapter_model.safetensors", entries, {});
  }
  void weights_refused(const std::vector<std::string>& parts) {
    write_weights();
    expect_error(ExitCode::checkpoint, parts, [&] { load_peft(dir_ / "a", *adapted_.lora); });
  }

  test::TempDir dir_;
  Adapted adapted_;
  json config_;
  std::map<std::string, at::Tensor> weights_;
  const std::string q_ = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  const std::string down_ = "base_model.model.model.layers.1.mlp.down_proj.lora_";
};

TEST_F(PeftFolder, OtherKindsOfAdapter) {
  refused({{"peft_type", "IA3"}}, {"'peft_type' is 'IA3'"});
  refused({{"peft_type", nullptr}}, {"'peft_type' is ''"});
  refused({{"bias", "all"}}, {"'bias' must be none"});
  refused({{"fan_in_fan_out", true}}, {"'fan_in_fan_out'"});
  refused({{"rank_pattern", {{"q_proj", 4}}}}, {"'rank_pattern'"});
  refused({{"alpha_pattern", {{"q_proj", 4}}}}, {"'alpha_pattern'"});
  refused({{"layers_to_transform", {0}}}, {"'layers_to_transform'"});
  refused({{"alora_invocation_tokens", {5}}}, {"'alora_invocation_tokens'"});
  for (const char* start : {"pissa", "pissa_niter_16", "olora", "loftq"}) {
    refused({{"init_lora_weights", start}}, {cat("'init_lora_weights' is '", start, "'"), "convert the adapter"});
  }
}

TEST_F(PeftFolder, ValuesOfAnotherType) {
  for (const json& r : {json(0), json(-1), json(1.5), json("8"), json(5000), json(nullptr), json(true)}) {
    refused({{"r", r}}, {"'r' must be"});
  }
  refused({{"lora_alpha", "16"}}, {"'lora_alpha' must be a number"});
  refused({{"lora_alpha", -1}}, {"'lora_alpha' must be a number"});
  refused({{"lora_dropout", -0.1}}, {"'lora_dropout' must be a number"});
  refused({{"target_modules", ""}}, {"'target_modules' must be a list"});
  refused({{"modules_to_save", "lm_head"}}, {"'modules_to_save' must be a list"});
  refused({{"use_dora", 1}}, {"'use_dora' must be true or false"});
  refused({{"target_modules", json::array()}}, {"'target_modules' must be a list"});
  refused({{"target_modules", {1}}}, {"'target_modules' must be a list"});
  refused({{"use_rslora", "no"}}, {"'use_rslora' must be true or false"});
  refused({{"use_rslora", 0}}, {"'use_rslora' must be true or false"});
  refused({{"base_model_name_or_path", 3}}, {"'base_model_name_or_path' must be a text"});
}

TEST_F(PeftFolder, FilesThatAreMissing) {
  expect_error(ExitCode::checkpoint, {"is not a folder of an adapter"}, [&] { read_peft_config(dir_ / "nowhere"); });
  fs::rename(dir_ / "a" / "adapter_model.safetensors", dir_ / "a" / "other");
  expect_error(ExitCode::checkpoint, {"holds no adapter_model.safetensors", "adapter_model.bin", "save_pretrained"},
               [&] { load_peft(dir_ / "a", *adapted_.lora); });
  write_file(dir_ / "a" / "adapter_config.json", as_bytes(std::string_view("{")));
  expect_error(ExitCode::checkpoint, {"adapter_config.json", "is not valid JSON"},
               [&] { read_peft_config(dir_ / "a"); });
}

TEST_F(PeftFolder, AllContradictionsInOneSentence) {
  weights_.erase(q_ + "A.weight");
  weights_[q_ + "B.weight"] = at::ones({32, 4});
  weights_[down_ + "A.weight"] = weights_.at(down_ + "A.weight").to(at::kLong);
  weights_[down_ + "B.bias"] = at::ones({2});
  const auto before = adapted_.lora->pairs().front().A.clone();
  weights_refused({q_ + "A.weight' is missing", q_ + "B.weight' is ", down_ + "A.weight' is ", "no floating-point type",
                   down_ + "B.bias' is unknown"});
  EXPECT_TRUE(at::equal(adapted_.lora->pairs().front().A, before)) << "nothing is loaded by halves";
}

// Names as wrappers and loops of one's own save them.
TEST_F(PeftFolder, OtherNames) {
  const auto before = weights_;
  const Adapted want({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}});
  load_peft(dir_ / "a", *want.lora);
  const auto expect_read = [&](const std::function<std::string(std::string)>& rename) {
    weights_.clear();
    for (const auto& [name, tensor] : before) weights_[rename(name)] = tensor;
    write_weights();
    const Adapted other({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}});
    load_peft(dir_ / "a", *other.lora);
    expect_same_pairs(*other.lora, *want.lora);
  };
  for (const std::string adapter : {"default.", "mine."}) {
    expect_read([&](std::string name) { return name.insert(name.rfind("weight"), adapter); });
  }
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    expect_read([&](const std::string& name) { return prefix + name; });
  }
  expect_read([](const std::string& name) { return name.substr(std::string("base_model.model.").size()); });
  weights_ = before;
  std::string second = q_ + "A.other.weight";
  weights_[second] = before.at(q_ + "A.weight");
  weights_refused({"holds two adapters", second});
}

TEST_F(PeftFolder, OfTorchSave) {
  const Adapted want({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}}),
      other({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}});
  load_peft(dir_ / "a", *want.lora);
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : weights_) {
    entries.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(tensor)});
  }
  fs::remove(dir_ / "a" / "adapter_model.safetensors");
  write_file(dir_ / "a" / "adapter_model.bin", build_torch_state_dict(entries));
  load_peft(dir_ / "a", *other.lora);
  expect_same_pairs(*other.lora, *want.lora);
}

// Layers that this program gives no adapters to.
TEST_F(PeftFolder, AdaptersOfTheHead) {
  weights_["base_model.model.lm_head.lora_A.weight"] = at::ones({3, 24});
  config_["target_modules"] = {"q_proj", "down_proj", "lm_head"};
  write_file(dir_ / "a" / "adapter_config.json", as_bytes(config_.dump()));
  write_weights();
  const Adapted other({.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj", "lm_head"}, .origin = "a"});
  expect_error(ExitCode::checkpoint, {"lm_head.lora_A.weight' is of a layer that gets no adapter"},
               [&] { load_peft(dir_ / "a", *other.lora); });
}

// DoRA, targets of single layers and modules that train whole, written and read again.
TEST(Peft, ReadsBackEverythingItWrites) {
  const test::TempDir dir;
  nn::LoraOptions options{.rank = 2,
                          .alpha = 3,
                          .targets = {"model.layers.0.mlp.up_proj", "q_proj"},
                          .dora = true,
                          .modules_to_save = {"lm_head", "norm"}};
  const Adapted one(options), other(options);
  for (const auto& [name, tensor] : one.lora->saved()) tensor.detach().mul_(1.5);
  for (const auto& pair : one.lora->pairs()) pair.magnitude.detach().mul_(1.25);
  write_peft(dir / "a", *one.lora, "base");
  const SafetensorsFile file(dir / "a" / "adapter_model.safetensors");
  EXPECT_TRUE(file.contains("base_model.model.lm_head.weight"));
  EXPECT_TRUE(file.contains("base_model.model.model.norm.weight"));
  EXPECT_TRUE(file.contains("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector"));
  EXPECT_FALSE(file.contains("base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"));
  load_peft(dir / "a", *other.lora);
  expect_same_pairs(*other.lora, *one.lora);
  for (size_t i = 0; i < one.lora->pairs().size(); ++i) {
    EXPECT_TRUE(at::equal(other.lora->pairs()[i].magnitude, one.lora->pairs()[i].magnitude));
  }
  ASSERT_EQ(other.lora->saved().size(), one.lora->saved().size());
  for (size_t i = 0; i < one.lora->saved().size(); ++i) {
    EXPECT_TRUE(at::equal(other.lora->saved()[i].second, one.lora->saved()[i].second));
  }
  options.dora = false;
  const Adapted plain(options);
  expect_error(ExitCode::checkpoint, {"has rank 2, alpha 3, DoRA", "lora.dora = false"},
               [&] { load_peft(dir / "a", *plain.lora); });
}

// An adapter that PEFT has trained with DoRA, a pattern and norms that train whole: its outputs, gradients and merged
// weights.
TEST(Peft, DoraIsThatOfPeft) {
  const fs::path folder = kFixture / "../dora", base = kFixture / "../qwen3_tied";
  const models::DecoderOptions decoder = decoder_options_of(read_hf_config(base), 64);
  const PeftConfig config = read_peft_config(folder);
  const data::TextPattern pattern(config.pattern, "fixture");
  const auto model = std::make_shared<models::DecoderLm>(decoder, at::kCPU);
  load_hf_weights(SafetensorsSet(base), decoder, *model);
  nn::LoraSet lora(*model,
                   {.rank = config.r,
                    .alpha = config.alpha,
                    .dora = config.dora,
                    .wants = [&](const auto& n) { return pattern.matches(n) == data::TextPattern::Answer::yes; },
                    .modules_to_save = config.modules_to_save},
                   at::kCPU);
  lora.initialise(1);
  load_peft(folder, lora);
  model->build_parameters(at::kFloat);
  const SafetensorsFile want(folder / "tensors.safetensors");
  const auto tensor = [&](const std::string& name) {
    const ArrayView& view = want.at(name);
    return tensor_from_bytes(view.dtype, view.shape, view.bytes);
  };
  const auto near = [](const at::Tensor& got, const at::Tensor& expected, double rtol, const std::string& name) {
    ASSERT_EQ(got.sizes(), expected.sizes()) << name;
    const double most = expected.abs().max().item<double>();
    EXPECT_LE((got - expected).abs().max().item<double>(), rtol * most) << name;
  };
  const at::Tensor ids = tensor("input_ids");
  const at::Tensor logits = model->logits(model->forward({.ids = ids}).hidden);
  near(logits.detach().select(1, ids.size(1) - 1), tensor("logits"), 1e-4, "logits");
  const at::Tensor predicted = logits.narrow(1, 0, ids.size(1) - 1).flatten(0, 1);
  const at::Tensor loss = at::cross_entropy_loss(predicted, ids.narrow(1, 1, ids.size(1) - 1).flatten().to(at::kLong));
  near(loss.detach(), tensor("loss"), 1e-5, "loss");
  loss.backward();
  const auto gradient_of = [&](const at::Tensor& view) {
    for (const auto& item : model->named_parameters()) {
      if (!item.value().requires_grad() || !item.value().is_alias_of(view)) continue;
      return item.value().grad().as_strided(
          view.sizes(), view.strides(),
          item.value().grad().storage_offset() + view.storage_offset() - item.value().storage_offset());
    }
    return at::Tensor();
  };
  size_t compared = 0;
  const auto compare = [&](const std::string& name, const at::Tensor& view) {
    if (!want.contains("grad.base_model.model." + name)) return;
    near(gradient_of(view), tensor("grad.base_model.model." + name), 1e-3, name);
    ++compared;
  };
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
    compare(pair.name + ".lora_A.weight", pair.A);
    compare(pair.name + ".lora_B.weight", pair.B);
    compare(pair.name + ".lora_magnitude_vector", pair.magnitude);
  }
  for (const auto& [name, saved] : lora.saved()) compare(name, saved);
  size_t gradients = 0;
  for (const std::string& name : want.names()) gradients += name.starts_with("grad.");
  EXPECT_EQ(compared, gradients);
  EXPECT_GT(compared, 10U);
  lora.merge();
  const at::Tensor merged = lora.merged_weight("model.layers.1.self_attn.qkv_proj.weight");
  const int64_t first_v = (decoder.heads + decoder.kv_heads) * decoder.head_dim;
  near(merged.narrow(0, first_v, 16), tensor("merged.model.layers.1.self_attn.v_proj.weight"), 1e-5, "merged");
}

TEST_F(PeftFolder, LowPrecisionIsWidened) {
  const at::Tensor want = weights_.at(q_ + "A.weight").to(at::kBFloat16);
  weights_[q_ + "A.weight"] = want;
  write_weights();
  load_peft(dir_ / "a", *adapted_.lora);
  EXPECT_TRUE(at::equal(adapted_.lora->pairs().front().A, want.to(at::kFloat)));
}

TEST_F(PeftFolder, AdaptersOfAnotherKind) {
  const auto refused = [&](const nn::LoraOptions& options) {
    const Adapted other(options);
    expect_error(ExitCode::checkpoint,
                 {"has rank 3, alpha 6", "targets (down_proj,q_proj)", cat("lora.r = ", options.rank, ",")},
                 [&] { load_peft(dir_ / "a", *other.lora); });
  };
  refused({.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}});
  refused({.rank = 3, .alpha = 3, .targets = {"q_proj", "down_proj"}});
  refused({.rank = 3, .alpha = 6, .rslora = true, .targets = {"q_proj", "down_proj"}});
  refused({.rank = 3, .alpha = 6, .targets = {"q_proj", "up_proj"}});
}

TEST_F(PeftFolder, IsNotOverwritten) {
  expect_error(ExitCode::environment, {"exists already"}, [&] { write_peft(dir_ / "a", *adapted_.lora, ""); });
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir_.path())) ++entries;
  EXPECT_EQ(entries, 1U) << "no temporary folder is left";
}

}  // namespace
}  // namespace hrm::checkpoint
