// The command export for language models: every format, and what --to hf refuses.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/commands/commands.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"
#include "hrm/tasks/language_inference.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/small_language.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

// A run of a few steps.
struct Trained {
  fs::path dir;
  std::map<std::string, at::Tensor> weights;  // by the model's own names

  explicit Trained(const std::string& name, const std::vector<std::string>& overrides)
      : dir(testing::fresh_folder(name)) {
    testing::SmallLanguage run(dir, overrides);
    run.trainer.run();
    run.task.write_files(dir / "small");  // as the command train does
    for (const auto& item : run.task.model().named_parameters()) weights[item.key()] = item.value().detach().clone();
  }
  commands::ExportOptions to(const std::string& format) const {
    commands::ExportOptions options;
    options.to = format;
    options.checkpoint = (dir / "small").string();
    options.out = (dir / ("out." + format)).string();
    return options;
  }
};

std::vector<std::string> packed_and(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"lm.arch=decoder", "data.train=" + testing::text_folder().string(),
                                        "data.encoder_len=0", "data.decoder_len=32"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

void expect_all_formats(const Trained& run) {
  for (const char* format : {"safetensors", "pt", "torchscript"}) EXPECT_EQ(commands::run_export(run.to(format)), 0);
  const SafetensorsFile safetensors(run.dir / "out.safetensors");
  const TorchArchive pt(run.dir / "out.pt"), archive(run.dir / "out.torchscript");
  for (const auto& [name, want] : run.weights) {
    const ArrayView& view = safetensors.at(name);
    EXPECT_TRUE(at::equal(tensor_from_bytes(view.dtype, view.shape, view.bytes), want)) << name;
    EXPECT_EQ(pt.at(name).shape, want.sizes().vec()) << name;
    if (name.starts_with("core.halt.")) continue;  // plays no part in the answer
    std::string spelt = name;
    for (size_t at; (at = spelt.find(".layers.")) != std::string::npos;) spelt.replace(at, 8, ".layer");
    EXPECT_EQ(archive.at(spelt).shape, want.sizes().vec()) << name;
  }
}

TEST(LanguageExport, ADecoderInEveryFormat) {
  const Trained run("export_decoder", packed_and({"lm.qk_norm=true"}));
  expect_all_formats(run);
  EXPECT_EQ(commands::run_export(run.to("hf")), 0);
  std::ifstream in(run.dir / "out.hf/config.json");
  const auto config = nlohmann::json::parse(in);
  EXPECT_EQ(config.at("model_type"), "qwen3");
  EXPECT_EQ(config.at("vocab_size"), 259) << "of bytes";
  EXPECT_EQ(config.at("eos_token_id"), 257);
  EXPECT_EQ(config.at("max_position_embeddings"), 1024);
  EXPECT_FALSE(fs::exists(run.dir / "out.hf/tokenizer.json")) << "bytes have none";
  const SafetensorsFile file(run.dir / "out.hf/model.safetensors");
  const at::Tensor qkv = run.weights.at("model.layers.1.self_attn.qkv_proj.weight");
  const ArrayView& k = file.at("model.layers.1.self_attn.k_proj.weight");
  EXPECT_TRUE(at::equal(tensor_from_bytes(k.dtype, k.shape, k.bytes), qkv.chunk(3)[1]));
}

TEST(LanguageExport, WhatTransformersHasNotIsRefused) {
  const Trained experts("export_experts", packed_and({"moe.experts=2", "moe.inner=16"}));
  expect_all_formats(experts);
  const Trained gated("export_gated", packed_and({"moe.experts=2", "moe.inner=16", "moe.activation=swiglu"}));
  expect_all_formats(gated);
  EXPECT_EQ(gated.weights.at("model.layers.0.mlp.gate_up.weight").size(0), 2 * 2 * 16);
  expect_error(ExitCode::usage, {"mixture of experts", "--to safetensors or --to torchscript"},
               [&] { commands::run_export(experts.to("hf")); });
  const Trained hrm("export_hrm", {});
  expect_all_formats(hrm);
  expect_error(ExitCode::usage, {"HRM language model", "--to safetensors or --to torchscript"},
               [&] { commands::run_export(hrm.to("hf")); });
  EXPECT_FALSE(fs::exists(hrm.dir / "out.hf"));
}

// The tokenizer comes from the run folder.
TEST(LanguageExport, TheTokenizerGoesAlong) {
  const fs::path dir = testing::fresh_folder("export_tokenizer");
  data::TextCommand command;
  command.inputs = {(testing::text_folder().parent_path() / "files").string()};
  command.tokenizer = (fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json").string();
  command.eos = "<|endoftext|>";
  command.validation = 0.2;
  command.out = (dir / "data").string();
  std::ostringstream out;
  data::run_data_text(command, out);
  const Trained run("export_tokenizer_run", packed_and({"data.train=" + (dir / "data").string()}));
  fs::remove_all(dir);
  EXPECT_EQ(commands::run_export(run.to("hf")), 0);
  EXPECT_TRUE(fs::exists(run.dir / "out.hf/tokenizer.json"));
  std::ifstream of_tokenizer(run.dir / "out.hf/tokenizer_config.json"), of_model(run.dir / "out.hf/config.json");
  EXPECT_EQ(nlohmann::json::parse(of_tokenizer).at("eos_token"), "<|endoftext|>");
  const auto config = nlohmann::json::parse(of_model);
  EXPECT_EQ(config.at("eos_token_id"), 1500);
  EXPECT_TRUE(config.at("pad_token_id").is_null()) << "EOS must stay a token to learn";

  // A checkpoint to hand on reads it from its own folder.
  commands::ExportOptions options = run.to("checkpoint");
  options.dtype = "bfloat16";
  EXPECT_EQ(commands::run_export(options), 0);
  const fs::path moved = testing::fresh_folder("export_moved") / "model";
  fs::rename(options.out, moved);
  fs::remove_all(run.dir);
  const tasks::LanguageInference model = tasks::open_language_model(moved, {"runtime.device=cpu"}, "auto");
  EXPECT_EQ(model.meta.tokenizer_file, "tokenizer.json");
  for (const auto& item : model.model->named_parameters()) {
    const at::Tensor& want = run.weights.at(item.key());
    EXPECT_TRUE(at::equal(item.value(), want.to(at::kBFloat16).to(at::kFloat))) << item.key();
  }
  std::ofstream(moved / "tokenizer.json") << "{}";
  expect_error(ExitCode::checkpoint, {"tokenizer.json"}, [&] { tasks::open_language_model(moved, {}, "auto"); });
}

}  // namespace
}  // namespace hrm
