// Polychromic training of all weights with blocks in fp8, by the reference ops on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/metric_lines.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

using testing::answers_folder;
using testing::fresh_folder;
using testing::has_gradients;
using testing::kAgain;
using testing::kGrpo;
using testing::kLetters;
using testing::largest_gap;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::Step;
using testing::step_of;
using testing::with;

const Overrides kAllWeights{"lora.r=0"};
const Overrides kFp8{"lora.r=0", "precision.blocks=fp8"};
const Overrides kNothingSampled{"polychromic.objective=none", "polychromic.max_generation_length=100"};
// No number of rows has a common divisor with 16, so that all rows are padded.
const Overrides kOdd{"train.global_batch_size=6", "train.micro_batch_size=3", "chat.buckets=3"};

std::vector<nlohmann::json> records(const std::filesystem::path& dir, const std::string& key) {
  return test::metric_lines(dir / "small", key);
}

void train_fresh(SmallPolychromic& run) {
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
}

int64_t block_steps(SmallPolychromic& run) {
  for (const auto& [name, value] : list_state(run.trainer).integers) {
    if (name == "fp8.steps") return value;
  }
  return -1;
}

// Decoding reads copies in the compute dtype; without it, layers in fp8 have none.
TEST(PolychromicFp8Training, KeepsCopiesWhereItSamples) {
  const auto casts = [](const Overrides& more) {
    SmallPolychromic run(fresh_folder("runs"), with(with(kFp8, {"precision.compute=bf16"}), more));
    run.trainer.start_fresh();
    run.trainer.run_steps(1);
    for (const nn::NamedLinear& layer : models::token_linears(*run.task.lm().model)) {
      const at::Tensor compute = layer.linear->compute_weight();
      EXPECT_TRUE(at::equal(compute, layer.linear->weight().to(at::kBFloat16))) << layer.name;
    }
    return models::token_linears(*run.task.lm().model)[0].linear->casts_weight();
  };
  EXPECT_FALSE(casts({}));
  EXPECT_TRUE(casts(kNothingSampled));
}

struct Fp8Variant {
  std::string name;
  Overrides overrides;
  Overrides fp8 = {};  // with precision.blocks=fp8 only
};
void PrintTo(const Fp8Variant& variant, std::ostream* out) {
  *out << variant.name;
}
class PolychromicFp8 : public ::testing::TestWithParam<Fp8Variant> {};

double relative_gap(const Step& got, const Step& want) {
  double gap = 0, all = 0;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    gap += (got.gradients[i] - want.gradients[i]).square().sum().item<double>();
    all += want.gradients[i].square().sum().item<double>();
  }
  return std::sqrt(gap / all);
}

// Padding changes nothing, and in 8 bits the gradients are those of the compute dtype within rounding. The rows fit
// without padding where batches are even.
TEST_P(PolychromicFp8, GradientsAreThoseOfTheComputeDtype) {
  for (const Overrides& rows : {Overrides{}, kOdd}) {
    const Overrides more = with(GetParam().overrides, rows);
    const Step want = step_of(with(kAllWeights, more));
    ASSERT_TRUE(has_gradients(want));
    EXPECT_LT(largest_gap(step_of(with(kFp8, with(more, {"precision.fp8_warmup_steps=9"}))), want), 2e-3);
    const double gap = relative_gap(step_of(with(kFp8, with(more, GetParam().fp8))), want);
    EXPECT_LT(gap, 0.2);
    EXPECT_GT(gap, 1e-3) << "nothing is in 8 bits";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Passes, PolychromicFp8,
    ::testing::Values(Fp8Variant{"responses", kNothingSampled}, Fp8Variant{"joint", {}},
                      Fp8Variant{"answers", {"polychromic.share_prompts=answers"}},
                      Fp8Variant{"off", {"polychromic.share_prompts=off", "hf.recompute=true"}},
                      Fp8Variant{"packed", {"chat.packing=true"}}, Fp8Variant{"rewards", kLetters},
                      Fp8Variant{"current", {}, {"precision.fp8_scaling=current", "precision.fp8_gradients=e4m3"}}),
    [](const auto& info) { return info.param.name; });

TEST(PolychromicFp8Training, LearnsAsWithout) {
  const auto dir = fresh_folder("runs");
  for (const auto& [name, kind] : {std::pair{"responses", kNothingSampled}, std::pair{"diversity", Overrides{}}}) {
    const Overrides more = with(kind, with(kOdd, {"train.steps=36", "train.log_every=12", "train.eval_every=20"}));
    SmallPolychromic plain(dir / name / "plain", with(kAllWeights, more)), fp8(dir / name / "fp8", with(kFp8, more));
    train_fresh(plain);
    train_fresh(fp8);
    EXPECT_EQ(block_steps(fp8), 36);
    const auto want = records(dir / name / "plain", "train/cross_entropy"),
               got = records(dir / name / "fp8", "train/cross_entropy");
    ASSERT_EQ(want.size(), 3u);
    ASSERT_EQ(got.size(), 3u);
    for (size_t i = 0; i < want.size(); ++i) {
      const double a = want[i]["train/cross_entropy"], b = got[i]["train/cross_entropy"];
      EXPECT_NEAR(b, a, 0.03 * a) << name << ", window " << i;
      EXPECT_NE(a, b);
      for (const char* kind_of_tensor : {"input", "gradient", "weight"}) {
        const std::string key = std::string("train/fp8/") + kind_of_tensor;
        EXPECT_GT(got[i][key + "/amax"].get<double>(), 0) << key;
        EXPECT_GE(got[i][key + "/scale_max"].get<double>(), got[i][key + "/scale_min"].get<double>()) << key;
        EXPECT_LT(got[i][key + "/saturated"].get<double>(), 0.5) << key;
      }
    }
    EXPECT_LT(want[2]["train/cross_entropy"].get<double>(), 0.9 * want[0]["train/cross_entropy"].get<double>());
    EXPECT_FALSE(want[0].contains("train/fp8/input/amax"));
  }
}

// Each mode is captured by itself, and none comes back.
TEST(PolychromicFp8Training, WarmUpGathersTheMaxima) {
  SmallPolychromic run(fresh_folder("runs"),
                       with(kFp8, with(kNothingSampled, {"precision.fp8_warmup_steps=2", "chat.buckets=1"})));
  run.trainer.start_fresh();
  run.trainer.run_steps(1);
  EXPECT_EQ(run.task.fp8()->mode(), nn::Fp8Mode::gather);
  const int64_t first = run.task.graph_key();
  EXPECT_TRUE(run.task.forms_return());
  run.trainer.run_steps(1);
  EXPECT_EQ(run.task.graph_key(), first);
  run.trainer.run_steps(1);
  EXPECT_EQ(run.task.fp8()->mode(), nn::Fp8Mode::delayed);
  EXPECT_NE(run.task.graph_key(), first);
  EXPECT_FALSE(run.task.forms_return());
  run.trainer.run_steps(1);
  EXPECT_TRUE(run.task.forms_return());
  EXPECT_TRUE((run.tensors().at("fp8.history").narrow(1, 0, 4) > 0).all().item<bool>());
}

std::filesystem::path trained(const std::filesystem::path& dir, const Overrides& overrides) {
  SmallPolychromic run(dir, overrides);
  train_fresh(run);
  return checkpoint::list_checkpoints(dir / "small").front();
}

// In the middle of a batch of answers, too, whose rows were padded to another multiple.
TEST(PolychromicFp8Training, CanBeSwitchedOnAndOffWhenARunGoesOn) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(kAgain, with(kOdd, {"optim.schedule=constant", "grpo.num_generations=5"}));
  const auto steps = [&](const Overrides& kind, int count) {
    return with(kind, with(more, {"train.steps=" + std::to_string(count)}));
  };
  auto found = trained(dir, steps(kAllWeights, 4));
  {
    SmallPolychromic run(dir, steps(kFp8, 8));
    EXPECT_EQ(run.task.plan().row_multiple, 16);
    const auto meta = checkpoint::find_latest_valid(dir / "small");
    ASSERT_TRUE(meta);
    run.trainer.resume(found, meta->meta.info);
    EXPECT_EQ(block_steps(run), 0);
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(block_steps(run), 4);
  }
  found = checkpoint::list_checkpoints(dir / "small").front();
  SmallPolychromic run(dir, steps(kAllWeights, 12));
  const auto meta = checkpoint::find_latest_valid(dir / "small");
  ASSERT_TRUE(meta);
  run.trainer.resume(found, meta->meta.info);
  EXPECT_EQ(block_steps(run), -1);
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
}

// A folder with this shape of a model.
std::string model_folder(const std::string& name, const std::string& type, int inner, int positions = 128) {
  const auto dir = fresh_folder(name);
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"model_type": ")" << type << R"(", "vocab_size": 264, "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true,
      "intermediate_size": )" << inner
                                     << R"(, "max_position_embeddings": )" << positions << "}";
  return "hf.model=" + dir.string();
}

TEST(PolychromicFp8Training, LayersWithBiasesAndExpertsStayAsTheyAre) {
  const std::string qwen2 = model_folder("qwen2", "qwen2", 48);
  SmallPolychromic biased(fresh_folder("runs"), with(kFp8, {qwen2, "precision.fp8_warmup_steps=7"}));
  std::string text = biased.task.describe();
  for (const char* part : {"6 of 8 linear layers in 2 blocks", "2 linear layers with a bias", "7 steps of warm-up",
                           "evaluation and sampling", "slow"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("multiples of 16"), std::string::npos) << text;
  for (const nn::NamedLinear& layer : biased.task.fp8()->layers()) {
    EXPECT_EQ(layer.name.find("qkv_proj"), std::string::npos) << layer.name;
  }
  const std::string experts = "hf.model=" + (answers_folder() / "experts").string();
  SmallPolychromic mixed(fresh_folder("runs"), with(kFp8, with(kOdd, {experts, "train.steps=2"})));
  text = mixed.task.describe();
  for (const char* part : {"4 of 4 linear layers in 2 blocks", "experts and routers", "multiples of 16"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  train_fresh(mixed);
}

// What is read back needs no fp8, and evaluates to the same bits.
TEST(PolychromicFp8Training, EvaluationsRunInTheComputeDtype) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic run(dir, with(kFp8, with(kOdd, {"train.steps=4"})));
  train_fresh(run);
  const auto before = run.tensors();
  const tasks::NamedValues want = run.task.evaluate([](const tasks::EvalProgress&) {});
  for (const auto& [name, tensor] : run.tensors()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  EXPECT_GT(tasks::value_of(want, "loss"), 0);
  run.task.write_files(dir / "small");
  const tasks::CausalInference loaded = tasks::open_causal_checkpoint(dir / "small", {}, "raw");
  EXPECT_FALSE(loaded.runtime.precision.fp8_blocks);
}

TEST(PolychromicFp8Training, WhatDoesNotFitIsRefused) {
  const auto dir = fresh_folder("runs");
  const auto refuse = [&](const std::vector<std::string>& parts, const Overrides& overrides) {
    test::expect_error(ExitCode::usage, parts, [&] { SmallPolychromic(dir, overrides); });
  };
  refuse({"precision.blocks = ", "lora.r = 4", "hf.quantize to fp8"}, {"precision.blocks=fp8"});
  refuse({"precision.blocks = ", "precision.compute = ", "bf16"}, with(kFp8, {"precision.compute=fp16"}));
  refuse({"'*.q_proj'", "model.layers.1.mlp.down_proj"}, with(kFp8, {"precision.fp8_skip=*.q_proj"}));
  const std::string narrow = model_folder("narrow", "llama", 40);
  refuse({"model.layers.0.mlp.down_proj", "40 by 32", "precision.fp8_skip=model.layers.0.mlp.down_proj"},
         with(kFp8, {narrow}));
  SmallPolychromic(dir / "skips", with(kFp8, {narrow, "precision.fp8_skip=*.down_proj"}));
  // 59 positions and answers of 8 tokens fit into 67, but not padded.
  const std::string tight = model_folder("short", "llama", 48, 67);
  refuse({"pads rows of 67 positions to 80", "max_position_embeddings", "smaller by 3"},
         with(kFp8, with(kOdd, {tight})));
  SmallPolychromic(dir / "fits", with(kFp8, with(kOdd, {tight, "chat.max_length=57"})));
}

TEST(PolychromicFp8Training, OtherNamesMeanBlocks) {
  SmallPolychromic run(fresh_folder("runs"), with(kAllWeights, {"train.mixed_precision=fp8", "train.fp8.format=e4m3",
                                                                "train.fp8.warmup_steps=3"}));
  ASSERT_NE(run.task.fp8(), nullptr);
  EXPECT_NE(run.task.describe().find("gradients e4m3"), std::string::npos);
}

}  // namespace
}  // namespace hrm
