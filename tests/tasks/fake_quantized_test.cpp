// Training for weights in 8 bits (precision.fake_quantize): gradients, evaluations, checkpoints and exports.

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/formats/safetensors.h"
#include "hrm/models/make_language_model.h"
#include "hrm/optim/ema.h"
#include "hrm/state/tensor_bytes.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/language_inference.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::Overrides;
using test::with;
using testing::fresh_folder;
using testing::SmallLanguage;
using testing::SmallPolychromic;

const Overrides kPlainDecoder{"lm.arch=decoder"};
const Overrides kWhole{"lora.r=0", "polychromic.objective=none", "polychromic.max_generation_length=100"};

models::LanguageModel& model_of(SmallLanguage& run) {
  return run.task.model();
}
models::LanguageModel& model_of(SmallPolychromic& run) {
  return *run.task.lm().model;
}

at::ScalarType type_of(const std::string& format) {
  return format == "int8" ? at::kChar : at::kFloat8_e4m3fn;
}

at::Tensor rounded(const at::Tensor& master, const std::string& format, at::ScalarType dtype = at::kFloat) {
  return ops::dequantize_weight8(ops::quantize_weight8(master.detach(), type_of(format)), dtype);
}

// Every layer that counts computes with its rounded master.
void expect_rounded(models::LanguageModel& model, const std::string& format) {
  const auto layers = models::token_linears(model);
  ASSERT_FALSE(layers.empty());
  for (const nn::NamedLinear& layer : layers) {
    const at::Tensor weight = layer.linear->base_weight();
    EXPECT_TRUE(at::equal(weight, rounded(layer.linear->weight(), format, weight.scalar_type()))) << layer.name;
  }
}

void overwrite_with_rounded(models::LanguageModel& model, const std::string& format) {
  const at::NoGradGuard no_grad;
  for (const nn::NamedLinear& layer : models::token_linears(model)) {
    at::Tensor(layer.linear->weight()).copy_(rounded(layer.linear->weight(), format));
  }
  model.parameter_set().refresh_compute();
}

// The gradients of a step of the run, one micro-batch.
template <class Run>
std::vector<at::Tensor> gradients(Run& run) {
  run.task.load_batch(1, 1);
  run.task.prepare_step(1);
  at::Tensor sums = at::zeros({static_cast<int64_t>(run.task.metric_names().size())}, at::kDouble);
  run.task.forward_backward(0, {}, sums);
  std::vector<at::Tensor> out{sums};
  for (const nn::Parameter& parameter : run.task.parameters().all()) out.push_back(parameter.master.grad().clone());
  return out;
}

// Loss and gradients are those of a model whose weights are the rounded ones: straight through the rounding.
template <class Run>
void expect_straight_through(const std::string& format, const Overrides& more) {
  const auto dir = fresh_folder("runs");
  Run fake(dir / "fake", with(more, {"precision.fake_quantize=" + format})), plain(dir / "plain", more);
  expect_rounded(model_of(fake), format);
  overwrite_with_rounded(model_of(plain), format);
  const auto got = gradients(fake), want = gradients(plain);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_GT(want[2].abs().max().template item<double>(), 0);
}

TEST(FakeQuantized, GradientsPassStraightThrough) {
  for (const char* format : {"int8", "fp8"}) {
    expect_straight_through<SmallLanguage>(format, kPlainDecoder);
    expect_straight_through<SmallLanguage>(format, with(kPlainDecoder, {"precision.compute=bf16", "lm.qk_norm=true"}));
    expect_straight_through<SmallLanguage>(format, {});  // with a reasoning core
    expect_straight_through<SmallPolychromic>(format, kWhole);
  }
}

// Those that hf.quantize stores in 8 bits.
TEST(FakeQuantized, CausalModelsRoundWhatTheyWouldQuantise) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic frozen(dir, {"hf.quantize=int8"}), plain(dir, {"lora.r=0"});
  std::vector<std::string> want, got;
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(model_of(frozen))) want.push_back(layer.weight);
  for (const nn::NamedLinear& layer : models::token_linears(model_of(plain))) got.push_back(layer.name + ".weight");
  EXPECT_EQ(got, want);
}

// Whatever wrote the masters: a step of each optimizer, averages for an evaluation and back, a checkpoint.
TEST(FakeQuantized, WeightsFollowTheirMasters) {
  for (const Overrides& more :
       {Overrides{}, Overrides{"optim.name=muon", "optim.lr=0.02"}, Overrides{"precision.compute=bf16"},
        Overrides{"lm.freeze=model.layers.0"}, Overrides{"lm.freeze=model.layers.0", "precision.compute=bf16"}}) {
    const auto dir = fresh_folder("runs");
    SmallLanguage run(dir, with(with(kPlainDecoder, more), {"precision.fake_quantize=int8"}));
    run.trainer.start_fresh();
    const at::Tensor before = model_of(run).named_parameters()["model.layers.1.mlp.down_proj.weight"].detach().clone();
    run.trainer.run_steps(2);
    EXPECT_FALSE(at::equal(model_of(run).named_parameters()["model.layers.1.mlp.down_proj.weight"], before));
    expect_rounded(model_of(run), "int8");
    optim::Ema average(run.task.parameters(), 0.5);
    run.trainer.run_steps(2);
    {
      const optim::EmaSwap swap(average, run.task.parameters());
      expect_rounded(model_of(run), "int8");
    }
    expect_rounded(model_of(run), "int8");
  }
}

// Evaluations of a run and of its checkpoint are those of a model with the rounded weights.
TEST(FakeQuantized, EvaluationsComputeWithRoundedWeights) {
  const auto dir = fresh_folder("runs");
  SmallLanguage run(dir / "fake", with(kPlainDecoder, {"precision.fake_quantize=fp8"})),
      plain(dir / "plain", kPlainDecoder);
  run.trainer.start_fresh();
  run.trainer.run();
  run.task.write_files(dir / "fake" / "small");
  const fs::path stored = dir / "fake" / "small";
  const auto opened = tasks::open_language_model(stored, {}, "raw"),
             masters = tasks::open_language_model(stored, {"precision.fake_quantize=none"}, "raw");
  expect_rounded(*opened.model, "fp8");
  for (auto& item : opened.model->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), masters.model->named_parameters()[item.key()])) << "a checkpoint holds masters";
  }
  {
    const at::NoGradGuard no_grad;
    auto to = model_of(plain).named_parameters();
    for (auto& item : opened.model->named_parameters()) to[item.key()].copy_(item.value());
  }
  overwrite_with_rounded(model_of(plain), "fp8");
  const auto evaluated = [](SmallLanguage& of) {
    return tasks::value_of(of.task.evaluate([](const tasks::EvalProgress&) {}), "loss");
  };
  EXPECT_EQ(evaluated(run), evaluated(plain));
}

at::Tensor stored(const SafetensorsFile& file, const std::string& name) {
  const ArrayView& view = file.at(name);
  return tensor_from_bytes(view.dtype, view.shape, view.bytes);
}

// The file's 8-bit weights stand for what products read in training; a file in float32 holds the same values.
void expect_exported(models::LanguageModel& model, const fs::path& run, const std::string& format) {
  commands::ExportOptions options;
  options.checkpoint = run.string();
  const auto exported = [&](const std::string& to, const std::string& dtype) {
    options.to = to;
    options.dtype = dtype;
    options.out = (run.parent_path() / (to + dtype)).string();
    commands::run_export(options);
    return options.out;
  };
  const SafetensorsFile bytes(exported("hf", format) + "/model.safetensors"),
      floats(exported("hf", "float32") + "/model.safetensors"), plain(exported("safetensors", "float32"));
  const auto layers = models::token_linears(model);
  for (const nn::NamedLinear& layer : layers) {
    const at::Tensor want = layer.linear->base_weight();
    // A causal checkpoint leaves out the outermost "model.".
    const std::string own = layer.name + ".weight", short_name = own.substr(std::string("model.").size());
    EXPECT_TRUE(at::equal(stored(plain, plain.contains(own) ? own : short_name), want)) << layer.name;
    if (layer.name.find("qkv") == std::string::npos && layer.name.find("gate_up") == std::string::npos) {
      const std::string name = layer.name + ".weight";
      EXPECT_TRUE(at::equal(stored(floats, name), want)) << name;
      const ops::Weight8 weight{stored(bytes, name), stored(bytes, name + "_scale").view({-1})};
      EXPECT_EQ(weight.values.scalar_type(), type_of(format));
      EXPECT_TRUE(at::equal(ops::dequantize_weight8(weight, at::kFloat), want)) << name;
    } else if (layer.name.find("gate_up") == std::string::npos) {
      std::string start = layer.name;
      start.replace(start.find("qkv_proj"), 8, "");
      std::vector<at::Tensor> parts;
      for (const char* part : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
        const ops::Weight8 weight{stored(bytes, start + part), stored(bytes, start + part + "_scale").view({-1})};
        parts.push_back(ops::dequantize_weight8(weight, at::kFloat));
      }
      EXPECT_TRUE(at::equal(at::cat(parts), want)) << layer.name;
    }
  }
  const std::string other = format == "int8" ? "fp8" : "int8";
  expect_error(ExitCode::usage, {"--dtype " + other, "precision.fake_quantize = " + format, "use --dtype " + format},
               [&] { exported("hf", other); });
}

TEST(FakeQuantized, ExportsHoldWhatTrainingComputedWith) {
  const auto dir = fresh_folder("runs");
  {
    SmallLanguage run(dir / "language", with(kPlainDecoder, {"precision.fake_quantize=fp8"}));
    run.trainer.start_fresh();
    run.trainer.run();
    run.task.write_files(dir / "language" / "small");
    expect_exported(model_of(run), dir / "language" / "small", "fp8");
  }
  SmallPolychromic run(dir / "causal", with(kWhole, {"precision.fake_quantize=int8"}));
  run.trainer.start_fresh();
  run.trainer.run();
  run.task.write_files(dir / "causal" / "small");
  expect_exported(model_of(run), dir / "causal" / "small", "int8");
  const auto opened = tasks::open_causal_checkpoint(dir / "causal" / "small", {}, "raw");
  expect_rounded(*opened.lm.model, "int8");
  EXPECT_NE(run.task.describe().find("8 linear layers of the blocks compute with weights rounded to int8"),
            std::string::npos)
      << run.task.describe();
}

TEST(FakeQuantized, WhatDoesNotFitIsRefused) {
  const auto dir = fresh_folder("refused");
  const auto language = [&](const Overrides& more, const std::vector<std::string>& parts) {
    expect_error(ExitCode::usage, parts, [&] { SmallLanguage(dir, with({"precision.fake_quantize=int8"}, more)); });
  };
  const auto causal = [&](const Overrides& more, const std::vector<std::string>& parts) {
    expect_error(ExitCode::usage, parts, [&] { SmallPolychromic(dir, with({"precision.fake_quantize=fp8"}, more)); });
  };
  language({"precision.blocks=fp8", "precision.compute=bf16"}, {"precision.blocks = ", "set precision.blocks to same"});
  language({"lm.style=prototype"}, {"lm.style = ", "lm.style to modern"});
  language({"moe.experts=4"}, {"is for dense models", "moe.experts = 4"});
  causal({}, {"lora.r = 4", "set lora.r to 0"});
  causal({"hf.quantize=int8"}, {"hf.quantize = ", "set one of them to none"});
  causal({"lora.r=0", "hf.model=" + (testing::answers_folder() / "experts").string()}, {"has experts"});
}

}  // namespace
}  // namespace hrm
