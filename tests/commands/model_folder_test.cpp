// Folders that no run of ours wrote, evaluated, asked and exported: an untouched model of transformers, and an adapter
// of PEFT beside it.
#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "commands/command_output.h"
#include "hrm/base/file.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/paths.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;
using test::Overrides;
using testing::answers_folder;
using testing::fresh_folder;
using testing::printed;

const fs::path kFixtures = test::source_dir() + "/tests/fixtures";

void copy_files(const fs::path& from, const fs::path& to, const std::vector<std::string>& names) {
  fs::create_directories(to);
  for (const std::string& name : names) fs::copy_file(from / name, to / name);
}

// The model of qwen3_tied with a tokenizer, and the adapter for it that PEFT wrote, whose file names no folder.
class ModelFolders : public ::testing::Test {
 protected:
  ModelFolders() : dir_(fresh_folder("folders")), base_(dir_ / "base"), adapter_(dir_ / "adapter") {
    copy_files(kFixtures / "qwen3_tied", base_, {"config.json", "generation_config.json", "model.safetensors"});
    copy_files(answers_folder() / "data", base_, kTokenizer);
    copy_files(kFixtures / "lora", adapter_, {"adapter_config.json", "adapter_model.safetensors"});
  }

  fs::path merged() const {
    commands::ExportOptions options = exporting("hf", "merged");
    options.base = base_.string();
    if (!fs::exists(options.out)) printed([&] { return commands::run_export(options); });
    return options.out;
  }
  commands::ExportOptions exporting(const std::string& to, const std::string& name) const {
    commands::ExportOptions options;
    options.checkpoint = adapter_.string();
    options.to = to;
    options.out = (dir_ / name).string();
    return options;
  }

  commands::EvalOptions evaluating(const fs::path& folder, const Overrides& more = {}) const {
    commands::EvalOptions options;
    options.checkpoint = folder.string();
    options.data = (answers_folder() / "data" / "test.jsonl").string();
    options.overrides = {"chat.template=plain", "chat.max_length=60", "eval.answers=0", "runtime.device=cpu",
                         "runtime.threads=1"};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    return options;
  }
  double loss(const fs::path& folder, const fs::path& base = "", const Overrides& more = {}) const {
    commands::EvalOptions options = evaluating(folder, more);
    options.base = base.string();
    return json::parse(printed([&] { return commands::run_eval(options); })).at("loss");
  }

  std::string answer(const fs::path& folder, const fs::path& base = "", const std::string& quantize = "") const {
    commands::GenerateOptions options;
    options.quantize = quantize;
    options.checkpoint = folder.string();
    options.base = base.string();
    options.chat_template = "plain";
    options.has_prompt = true;
    options.prompt = "Split 57.";
    options.max_new_tokens = 16;
    options.device = "cpu";
    return printed([&] { return commands::run_generate(options); });
  }

  static inline const std::vector<std::string> kTokenizer = {"tokenizer.json", "tokenizer_config.json"};
  fs::path dir_, base_, adapter_;
};

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const ArrayView& view = file.at(name);
  return tensor_from_bytes(view.dtype, view.shape, view.bytes);
}

TEST_F(ModelFolders, ExportMergesAnAdapterAsPeftDoes) {
  const SafetensorsFile got(merged() / "model.safetensors"), peft(kFixtures / "lora" / "tensors.safetensors"),
      base(base_ / "model.safetensors");
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                           "model.layers.0.mlp.down_proj.weight"}) {
    const at::Tensor ours = tensor_of(got, name);
    EXPECT_TRUE(at::allclose(ours, tensor_of(peft, std::string("merged.") + name), 1e-5, 1e-6)) << name;
    EXPECT_FALSE(at::allclose(ours, tensor_of(base, name), 1e-3, 1e-3)) << name;
  }
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    EXPECT_TRUE(at::equal(tensor_of(got, name), tensor_of(base, name))) << name;
  }
  const auto text = [](const fs::path& file) { return read_text(file, ExitCode::data); };
  for (const char* name : {"generation_config.json", "tokenizer.json"}) {
    EXPECT_EQ(text(merged() / name), text(base_ / name)) << name;
  }
}

TEST_F(ModelFolders, AnswersOfAnAdapterAreThoseOfTheMergedModel) {
  const std::string ours = answer(adapter_, base_);
  EXPECT_EQ(ours, answer(merged()));
  EXPECT_NE(ours, answer(base_));
  // The file names the folder; the tokenizer is beside the adapter.
  const fs::path own = dir_ / "own", other = dir_ / "other";
  copy_files(base_, other, {"config.json", "model.safetensors"});
  copy_files(adapter_, own, {"adapter_config.json", "adapter_model.safetensors"});
  copy_files(base_, own, kTokenizer);
  json config = json::parse(read_text(own / "adapter_config.json", ExitCode::data));
  config["base_model_name_or_path"] = other.string();
  write_text_atomic(own / "adapter_config.json", config.dump());
  EXPECT_EQ(answer(own), ours);
}

// The adapter's targets as PEFT writes them otherwise: for all layers of a small model, and as the user gave them.
TEST_F(ModelFolders, TargetsInEveryForm) {
  const double want = loss(adapter_, base_);
  const json config = json::parse(read_text(adapter_ / "adapter_config.json", ExitCode::data));
  json names = json::array();
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string target : config.at("target_modules")) {
      names.push_back(
          layer +
          ((target[0] == 'q' || target[0] == 'k' || target[0] == 'v' || target[0] == 'o' ? "self_attn." : "mlp.") +
           target));
    }
  }
  const auto with = [&](const json& targets) {
    json changed = config;
    changed["target_modules"] = targets;
    write_text_atomic(adapter_ / "adapter_config.json", changed.dump());
    return loss(adapter_, base_);
  };
  EXPECT_EQ(with(names), want);
  EXPECT_EQ(with("all-linear"), want);
  EXPECT_EQ(with(R"((?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:\w+_proj)))"), want);
  names.push_back("c_attn");  // of another architecture
  EXPECT_EQ(with(names), want);
  expect_error(ExitCode::checkpoint, {"adapter_config.json: ", "not a regular expression"}, [&] { with("(q_proj"); });
  expect_error(ExitCode::checkpoint, {"adapter_config.json: ", "no layer of the model matches the targets"},
               [&] { with(".*lm_head"); });
  expect_error(ExitCode::checkpoint, {"of a layer that gets no adapter"}, [&] { with(".*q_proj"); });
}

// A head that was trained whole beside a tied embedding is one of its own from then on.
TEST_F(ModelFolders, ModulesThatWereTrainedWhole) {
  const double before = loss(adapter_, base_);
  json config = json::parse(read_text(adapter_ / "adapter_config.json", ExitCode::data));
  config["modules_to_save"] = {"lm_head"};
  write_text_atomic(adapter_ / "adapter_config.json", config.dump());
  at::Tensor head;
  {
    const SafetensorsFile base(base_ / "model.safetensors"), adapter(adapter_ / "adapter_model.safetensors");
    head = (tensor_of(base, "model.embed_tokens.weight") * 0.5).contiguous();
    std::vector<SafetensorsEntry> entries{
        {"base_model.model.lm_head.weight", DType::f32, head.sizes().vec(), bytes_of(head)}};
    for (const std::string& name : adapter.names()) {
      entries.push_back({name, adapter.at(name).dtype, adapter.at(name).shape, adapter.at(name).bytes});
    }
    write_safetensors(dir_ / "new", entries, {});
  }
  fs::rename(dir_ / "new", adapter_ / "adapter_model.safetensors");
  const double whole = loss(adapter_, base_);
  EXPECT_GT(std::abs(whole - before), 1e-2 * before);
  EXPECT_NEAR(loss(merged()), whole, 1e-5 * whole);
  const SafetensorsFile got(merged() / "model.safetensors"), base(base_ / "model.safetensors");
  EXPECT_TRUE(at::equal(tensor_of(got, "lm_head.weight"), head));
  EXPECT_TRUE(at::equal(tensor_of(got, "model.embed_tokens.weight"), tensor_of(base, "model.embed_tokens.weight")));
}

TEST_F(ModelFolders, DoraOfPeft) {
  copy_files(kFixtures / "dora", dir_ / "dora", {"adapter_config.json", "adapter_model.safetensors"});
  adapter_ = dir_ / "dora";
  const double beside = loss(adapter_, base_);
  EXPECT_GT(std::abs(beside - loss(base_)), 1e-3 * beside);
  EXPECT_NEAR(loss(merged()), beside, 1e-5 * beside);
  EXPECT_EQ(answer(adapter_, base_), answer(merged()));
}

// A module for torch.jit.load of a model as it is, and of adapters merged into it. It needs no tokenizer.
TEST_F(ModelFolders, TorchscriptOfModelAndAdapter) {
  fs::remove(base_ / "tokenizer.json");
  fs::remove(base_ / "tokenizer_config.json");
  at::manual_seed(1);
  const at::Tensor ids = at::randint(500, {2, 20}, at::kLong);
  const auto run = [&](const fs::path& checkpoint, const std::string& base, const std::string& name) {
    commands::ExportOptions options = exporting("torchscript", name + ".ts");
    options.checkpoint = checkpoint.string();
    options.base = base;
    printed([&] { return commands::run_export(options); });
    const at::NoGradGuard no_grad;
    return torch::jit::load(options.out).forward({ids}).toTensor();
  };
  const auto direct = [&](const std::vector<std::string>& settings) {
    const config::Config config =
        config::load_config({}, test::with({"task=polychromic", "polychromic.objective=none", "runtime.device=cpu",
                                            "precision.compute=fp32", "hf.model=" + base_.string()},
                                           settings))
            .config;
    tasks::CausalLm lm = tasks::open_frozen_lm(config, {}, 32);
    const at::NoGradGuard no_grad;
    return lm.model->logits(lm.model->forward({.ids = ids}).hidden);
  };
  const auto near = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 2e-5, 2e-5); };
  const at::Tensor plain = run(base_, "", "base"), tuned = run(adapter_, base_.string(), "adapter");
  EXPECT_TRUE(near(plain, direct({"lora.r=0"})));
  EXPECT_FALSE(at::allclose(tuned, plain, 1e-2, 1e-2)) << "the adapter matters";
  EXPECT_TRUE(near(tuned, direct({"lora.r=8", "lora.alpha=16", "lora.adapter=" + adapter_.string()})));
}

// Names of models on the hub, which nobody has fetched.
TEST_F(ModelFolders, NamesOfTheHub) {
  const std::string name = "Qwen/Qwen3-0.6B";
  const std::vector<std::string> parts{name, "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"};
  expect_error(ExitCode::checkpoint, parts, [&] { answer(name); });
  expect_error(ExitCode::checkpoint, parts, [&] { loss(name); });
  expect_error(ExitCode::checkpoint, parts, [&] { answer(adapter_, name); });
  commands::ExportOptions options = exporting("hf", "out");
  options.checkpoint = name;
  expect_error(ExitCode::checkpoint, parts, [&] { printed([&] { return commands::run_export(options); }); });
}

TEST_F(ModelFolders, EvalMeasuresModelAndAdapter) {
  const double tuned = loss(adapter_, base_), base = loss(base_);
  EXPECT_NEAR(tuned, loss(merged()), 1e-5 * tuned);
  EXPECT_GT(std::abs(tuned - base), 5e-3 * base) << tuned << " " << base;
  EXPECT_NEAR(loss(adapter_, base_, {"hf.quantize=nf4"}), tuned, 0.2 * tuned);
  EXPECT_NEAR(loss(adapter_, base_, {"hf.quantize=fp8"}), tuned, 0.05 * tuned);
  // Without an adapter, and as a folder of 8-bit weights, which give the same numbers.
  const double held = loss(base_, "", {"hf.quantize=int8"});
  EXPECT_NE(held, base);
  EXPECT_NEAR(held, base, 0.05 * base);
  commands::ExportOptions in_8_bits = exporting("hf", "int8");
  in_8_bits.checkpoint = base_.string();
  in_8_bits.base.clear();
  in_8_bits.dtype = "int8";
  printed([&] { return commands::run_export(in_8_bits); });
  EXPECT_NEAR(loss(dir_ / "int8"), held, 5e-3 * held) << "the rest is in bfloat16";
  EXPECT_NEAR(loss(dir_ / "int8", "", {"hf.quantize=int8"}), loss(dir_ / "int8"), 1e-5 * held);
  EXPECT_EQ(answer(dir_ / "int8", "", "int8"), answer(dir_ / "int8"));
  EXPECT_FALSE(answer(base_, "", "fp8").empty());
  expect_error(ExitCode::usage, {"are stored as int8", "set hf.quantize=int8"},
               [&] { answer(dir_ / "int8", "", "fp8"); });
  // Both sides of a comparison, each with the name of its folder.
  const auto evaluated = [&](const fs::path& folder, const fs::path& base_folder, const std::string& name) {
    commands::EvalOptions options = evaluating(folder, {"eval.answers=2", "eval.answer_tokens=8"});
    options.base = base_folder.string();
    options.report = (dir_ / name).string();
    printed([&] { return commands::run_eval(options); });
    return options.report;
  };
  const std::string untouched = evaluated(base_, "", "untouched"), beside = evaluated(adapter_ / "", base_, "beside");
  EXPECT_NE(read_text(fs::path(beside) / "report.md", ExitCode::data).find("| adapter |"), std::string::npos);
  commands::ReportOptions both;
  both.evaluations = {"base=" + untouched, "tuned=" + beside};
  both.out = (dir_ / "compared").string();
  printed([&] { return commands::run_report(both); });
  const std::string report = read_text(dir_ / "compared" / "report.md", ExitCode::data);
  EXPECT_NE(report.find("| base |"), std::string::npos) << report;
  EXPECT_NE(report.find("| tuned |"), std::string::npos) << report;
}

TEST_F(ModelFolders, WhatIsMissingOrDoesNotFit) {
  const auto refused = [](ExitCode code, const std::vector<std::string>& parts, const auto& command) {
    expect_error(code, parts, [&] { printed(command); });
  };
  const std::vector<std::string> no_base{"is for the model 'qwen3_tied'", "not a folder of a model here", "--base"};
  expect_error(ExitCode::checkpoint, no_base, [&] { answer(adapter_); });
  expect_error(ExitCode::checkpoint, no_base, [&] { loss(adapter_); });
  refused(ExitCode::checkpoint, no_base, [&] { return commands::run_export(exporting("hf", "out")); });
  expect_error(ExitCode::usage, {"is a whole model", "--base"}, [&] { answer(base_, base_ / ".." / "adapter"); });
  expect_error(ExitCode::usage, {"is a whole model", "hf.model"}, [&] { loss(base_, dir_); });
  expect_error(ExitCode::usage, {"--base is of adapters", "has none"}, [&] { loss(base_, base_); });
  expect_error(ExitCode::usage, {"lora.r and lora.adapter"}, [&] { loss(base_, "", {"lora.r=4"}); });
  expect_error(ExitCode::checkpoint, {"has rank 8", "lora.r = 4"}, [&] { loss(adapter_, base_, {"lora.r=4"}); });
  expect_error(ExitCode::checkpoint, {"no averaged weights"}, [&] {
    loss(base_, "", {"eval.weights=ema", "optim.ema=0.999"});
  });
  expect_error(ExitCode::usage, {"max_position_embeddings = 256"}, [&] { loss(base_, "", {"chat.max_length=500"}); });
  copy_files(base_, dir_ / "larger", {"config.json", "model.safetensors", "tokenizer_config.json"});
  copy_files(kFixtures / "tokenizer", dir_ / "larger", {"tokenizer.json"});
  write_text_atomic(dir_ / "larger" / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  expect_error(ExitCode::checkpoint, {"larger' has 1505 tokens, but the model of", "knows 640"},
               [&] { answer(dir_ / "larger"); });
  fs::create_directories(dir_ / "pointers");
  write_text_atomic(dir_ / "pointers" / "config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
  const std::vector<std::string> pointer{"config.json: this is a Git LFS pointer", "git lfs pull"};
  expect_error(ExitCode::checkpoint, pointer, [&] { answer(dir_ / "pointers"); });
  expect_error(ExitCode::checkpoint, pointer, [&] { loss(dir_ / "pointers"); });
  commands::EvalOptions without = evaluating(base_);
  without.data.clear();
  refused(ExitCode::usage, {"has no data of its own", "--data FILE"}, [&] { return commands::run_eval(without); });
  for (const char* to : {"peft", "safetensors", "pt", "checkpoint"}) {
    commands::ExportOptions options = exporting(to, "out");
    options.base = base_.string();
    const std::vector<std::string> parts = std::string(to) == "checkpoint"
                                               ? std::vector<std::string>{"--to checkpoint is for puzzle"}
                                               : std::vector<std::string>{"is an adapter of PEFT", "--to hf"};
    refused(ExitCode::usage, parts, [&] { return commands::run_export(options); });
  }
  for (const char* to : {"hf", "safetensors"}) {
    commands::ExportOptions whole = exporting(to, "out");
    whole.checkpoint = base_.string();
    refused(ExitCode::usage, {"is a model of transformers already", "--to torchscript"},
            [&] { return commands::run_export(whole); });
  }
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

}  // namespace
}  // namespace hrm
