// Training beside quantised weights (hf.quantize=nf4, fp8 or int8) is training beside the values that they stand for;
// what such runs write; what does not fit them.

#include <ATen/ATen.h>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/commands/commands.h"
#include "hrm/nn/linear.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/paths.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using test::Overrides;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallPolychromic;

const fs::path kQwen3 = test::source_dir() + "/tests/fixtures/qwen3_tied";

std::map<std::string, at::Tensor> dequantized(const models::DecoderLm& model) {
  std::map<std::string, at::Tensor> out;
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(model)) {
    out[layer.weight] = layer.linear->dequantized(at::kFloat);
  }
  return out;
}

// The layers of `model` get these values.
void overwrite(models::DecoderLm& model, const std::map<std::string, at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  for (const auto& [name, value] : values) parameters[name].copy_(value);
}

// The values that `weight` has in the format of hf.quantize.
at::Tensor as_quantized(const at::Tensor& weight, const std::string& format) {
  if (format == "nf4") return ops::nf4_dequantize(ops::nf4_quantize(weight), weight.sizes(), at::kFloat);
  return ops::dequantize_weight8(ops::quantize_weight8(weight, format == "fp8" ? at::kFloat8_e4m3fn : at::kChar),
                                 at::kFloat);
}

class PolychromicQuantized : public ::testing::TestWithParam<const char*> {
 protected:
  std::string quantize_ = cat("hf.quantize=", GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, PolychromicQuantized, ::testing::Values("nf4", "fp8", "int8"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PolychromicQuantized, WeightsAreTheModelsOwnQuantised) {
  for (const Overrides& more : {Overrides{}, Overrides{"hf.weights=load", "hf.model=" + kQwen3.string()}}) {
    const auto dir = fresh_folder("runs");
    SmallPolychromic nf4(dir, with(more, {quantize_})), plain(dir, more);
    auto want = plain.task.lm().model->named_parameters();
    const std::map<std::string, at::Tensor> got = dequantized(*nf4.task.lm().model);
    EXPECT_EQ(got.size(), 4u * static_cast<size_t>(nf4.task.lm().facts.layers));
    for (const auto& [name, value] : got) {
      const at::Tensor& weight = want[name];
      EXPECT_TRUE(at::equal(value, as_quantized(weight, GetParam()))) << name;
    }
    for (const auto& item : nf4.task.lm().model->named_parameters()) {
      if (got.count(item.key()) > 0) continue;
      EXPECT_FALSE(item.value().is_meta()) << item.key();
      EXPECT_TRUE(at::equal(item.value(), want[item.key()])) << item.key();
    }
  }
}

// Answers are sampled by products that are summed in another order (beside the adapter in place of merged), so that
// here none are; on all projections, and on one alone, which leaves layers without an adapter.
TEST_P(PolychromicQuantized, TrainsAsBesideTheDequantisedWeights) {
  for (const Overrides& more : {Overrides{"lora.dropout=0.1"}, Overrides{"lora.targets=v_proj", "hf.recompute=true"}}) {
    const auto dir = fresh_folder("runs");
    const Overrides all =
        with(more, {"polychromic.objective=none", "polychromic.max_generation_length=100", "train.eval_every=4"});
    SmallPolychromic nf4(dir / "nf4", with(all, {quantize_})), plain(dir / "plain", all);
    overwrite(*plain.task.lm().model, dequantized(*nf4.task.lm().model));
    for (SmallPolychromic* run : {&nf4, &plain}) {
      run->trainer.start_fresh();
      ASSERT_EQ(run->trainer.run(), train::Outcome::finished);
    }
    const auto got = nf4.tensors(), want = plain.tensors();
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
    EXPECT_EQ(metrics_without_timing(dir / "nf4"), metrics_without_timing(dir / "plain"));
  }
}

// A prompt and steps of decoding from a cache, beside an adapter that does something.
TEST_P(PolychromicQuantized, ReadsAndWritesAsWithTheDequantisedWeights) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic nf4(dir / "nf4", {quantize_}), plain(dir / "plain");
  overwrite(*plain.task.lm().model, dequantized(*nf4.task.lm().model));
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> hidden[2];
  int at = 0;
  for (SmallPolychromic* run : {&nf4, &plain}) {
    tasks::CausalLm& lm = run->task.lm();
    for (const nn::LoraAdapter::Pair& pair : lm.lora->pairs()) pair.B.add_(0.05);
    lm.model->parameter_set().refresh_compute();
    lm.lora->merge();
    const nn::WithLoraMode merged(*lm.lora, nn::LoraMode::merged);
    models::DecodeCache cache = lm.model->make_cache(2, 16);
    const at::Tensor ids = at::arange(12, at::kLong).view({2, 6}) + 20;
    hidden[at].push_back(lm.model->prefill({.ids = ids}, at::tensor({6, 4}, at::kLong), cache).narrow(1, 0, 4));
    for (int64_t i = 0; i < 3; ++i) {
      hidden[at].push_back(lm.model->step(at::tensor({30 + i, 40 + i}, at::kLong), cache));
    }
    ++at;
  }
  for (size_t i = 0; i < hidden[0].size(); ++i) {
    EXPECT_TRUE(at::allclose(hidden[0][i], hidden[1][i], 1e-4, 1e-5)) << i;
  }
}

TEST(PolychromicNf4, TheLogSaysWhatTheBaseTakes) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic run(dir, {"hf.quantize=nf4"});
  // Of two layers: 64 x 32 (q, k, v), 32 x 32, 96 x 32 (gate, up), 32 x 48.
  const nn::QuantizedMemory memory = nn::quantized_memory(*run.task.lm().model);
  EXPECT_EQ(memory.elements, 2 * (2048 + 1024 + 3072 + 1536));
  EXPECT_EQ(memory.bytes, memory.elements / 2 + memory.elements / 64 + 2 * 4 * 8);
  EXPECT_EQ(memory.workspace, 4 * 3072) << "the largest layer in float32";
  const std::string text = run.task.describe();
  EXPECT_NE(text.find("NF4, 15360 parameters of the blocks' linear layers in 0.0 MiB (0.0 in bf16)"), std::string::npos)
      << text;
  EXPECT_EQ(SmallPolychromic(dir, {}).task.describe().find("NF4"), std::string::npos);
  SmallPolychromic bytes(dir, {"hf.quantize=int8"});
  // A scale for each of 64, 32, 96 and 32 outputs.
  EXPECT_EQ(nn::quantized_memory(*bytes.task.lm().model).bytes, memory.elements + 2 * 4 * (64 + 32 + 96 + 32));
  EXPECT_NE(bytes.task.describe().find("int8, 15360 parameters"), std::string::npos);
}

TEST(PolychromicNf4, WeightsThatAreTrainedAreNotQuantised) {
  const auto dir = fresh_folder("runs");
  for (const char* format : {"nf4", "fp8", "int8"}) {
    test::expect_error(ExitCode::usage,
                       {cat("hf.quantize = ", format, " is for weights that are frozen"), "lora.r = 0"}, [&] {
                         SmallPolychromic(dir, {cat("hf.quantize=", format), "lora.r=0"});
                       });
  }
}

struct TrainedRun {
  fs::path dir;
  std::map<std::string, at::Tensor> base;

  TrainedRun(const fs::path& folder, const std::string& quantize) : dir(folder) {
    SmallPolychromic run(dir, {quantize, "hf.weights=load", "hf.model=" + kQwen3.string(), "train.steps=4"});
    base = dequantized(*run.task.lm().model);
    run.trainer.start_fresh();
    run.trainer.run();
    run.task.write_files(dir / "small");
  }
};

// --to hf: the dequantised weights and the adapter together; --to peft: the adapter alone.
TEST_P(PolychromicQuantized, Exports) {
  const TrainedRun run(fresh_folder("runs"), quantize_);
  const tasks::CausalInference opened = tasks::open_causal_checkpoint(run.dir / "small", {}, "raw");
  EXPECT_EQ(nn::quantized_layers(*opened.lm.model).size(), run.base.size());
  for (const char* to : {"hf", "peft"}) {
    EXPECT_EQ(
        commands::run_export({.to = to, .checkpoint = (run.dir / "small").string(), .out = (run.dir / to).string()}),
        0);
  }
  // As a plain model: the adapter's part beside what is dequantised.
  SmallPolychromic exported(run.dir / "again",
                            {"hf.weights=load", "hf.model=" + (run.dir / "hf").string(), "lora.r=0"});
  auto weights = exported.task.lm().model->named_parameters();
  double largest = 0;
  for (const auto& [name, base] : run.base) {
    EXPECT_TRUE(at::equal(weights[name], opened.lm.lora->merged_weight(name))) << name;
    largest = std::max(largest, (weights[name] - base).abs().max().item<double>());
  }
  EXPECT_GT(largest, 1e-5) << "the adapter is in it";
  // The adapter beside other weights of the same names.
  SmallPolychromic adapted(run.dir / "adapted", {"hf.weights=load", "hf.model=" + kQwen3.string(),
                                                 "lora.adapter=" + (run.dir / "peft").string()});
  const auto got = adapted.task.lm().lora->pairs(), want = opened.lm.lora->pairs();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i].A, want[i].A) && at::equal(got[i].B, want[i].B)) << got[i].name;
  }
}

TEST_P(PolychromicQuantized, AnotherFormatIsRefused) {
  const TrainedRun run(fresh_folder("runs"), quantize_);
  test::expect_error(ExitCode::usage, {cat("was trained beside weights with hf.quantize = ", GetParam(), ", not none")},
                     [&] { tasks::open_causal_checkpoint(run.dir / "small", {"hf.quantize=none"}, "raw"); });
  const Overrides loaded{"hf.weights=load", "hf.model=" + kQwen3.string(), "train.steps=6"};
  const auto found = checkpoint::find_latest_valid(run.dir / "small");
  ASSERT_TRUE(found);
  SmallPolychromic other(run.dir, loaded);
  for (const bool accept : {false, true}) {  // which is for other data alone
    test::expect_error(ExitCode::data, {"the frozen model is not the one that the adapter of", "hf.model=FOLDER"},
                       [&] { other.trainer.resume(found->dir, found->meta.info, accept); });
  }
  SmallPolychromic same(run.dir, with(loaded, {quantize_}));
  same.trainer.resume(found->dir, found->meta.info);
  for (const Overrides& weights : {Overrides{"hf.weights=load", "hf.model=" + kQwen3.string()}, Overrides{}}) {
    const auto config = [&](const char* format) {
      return testing::small_polychromic_config(run.dir, with(weights, {cat("hf.quantize=", format)})).config;
    };
    EXPECT_NE(tasks::base_digest(config(GetParam())), tasks::base_digest(config("none")));
  }
}

}  // namespace
}  // namespace hrm
