// plan and bench eval of language models, run as users do.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/overrides.h"
#include "support/paths.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

using Words = std::vector<std::string>;

std::string recipe(const std::string& name) {
  return test::source_dir() + "/configs/language/" + name + ".json";
}

std::string sums(const TempDir& dir, const Words& more = {}) {
  const std::string data = (dir / "sums").string();
  const Result made = run(with({"data", "arithmetic", "--digits", "1", "--samples", "40", "--out", data}, more));
  EXPECT_EQ(made.code, 0) << made.err;
  return data;
}

TEST(PlanOfLanguageModels, SaysWhatAStepTakes) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  for (const char* name : {"text_decoder", "code_decoder", "code_hrm", "code_moe", "code_mamba", "arithmetic_cpu",
                           "arithmetic_prototype_cpu"}) {
    const Result result = run({"plan", "--config", recipe(name), "--vocab-size", "8192", "--gpu", "H200", "--json",
                               file.string(), "runtime.device=auto"});
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* part : {"weights", "gradients", "optimizer", "activations kept", "= peak in tensors", "fits",
                             "matrix products", "attention", "FLOPs of its products", "samples/s", "assumed"}) {
      EXPECT_NE(result.out.find(part), std::string::npos) << name << ": " << part << " is not in:\n" << result.out;
    }
    const json plan = json::parse(read(file));
    EXPECT_GT(plan.at("parameters"), 100000) << name;
    EXPECT_GT(plan.at("flops_per_step"), 1e9) << name;
    EXPECT_TRUE(plan.at("fits").get<bool>()) << name;
    EXPECT_NEAR(plan.at("tflops").get<double>(),
                1e-9 * plan.at("flops_per_step").get<double>() / plan.at("step_ms").get<double>(),
                1e-6 * plan.at("tflops").get<double>());
  }
}

TEST(PlanOfLanguageModels, TakesTheVocabularyOfTheData) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const Words words = {"plan", "--gpu", "H200", "--json", file.string(), "task=language", "lm.arch=decoder"};
  ASSERT_EQ(run(with(words, {"data.train=" + sums(dir)})).code, 0);
  const json of_data = json::parse(read(file));
  ASSERT_EQ(run(with(words, {"--vocab-size", "259"})).code, 0);
  EXPECT_EQ(json::parse(read(file)).at("parameters"), of_data.at("parameters")) << "bytes and three more";
  expect_refusal(ExitCode::usage, with(words, {"data.train="}), {"data.train is empty", "--vocab-size"});
  expect_refusal(ExitCode::usage, with(words, {"--vocab-size", "259", "--seq-len", "81"}),
                 {"--seq-len", "data.decoder_len"});
}

TEST(PlanOfLanguageModels, ForSeveralRanks) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const Result result = run({"plan", "--config", recipe("code_moe"), "--vocab-size", "8192", "--gpu", "H200", "--ranks",
                             "1,8", "--json", file.string()});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("expert loads"), std::string::npos) << result.out;
  const json plan = json::parse(read(file));
  EXPECT_EQ(plan.at("plans").at(0).at("calls"), 0);
  EXPECT_GT(plan.at("plans").at(1).at("exposed_ms"), 0);
}

TEST(BenchEvalOfLanguageModels, TimesTheValidationSlices) {
  const TempDir dir;
  const fs::path file = dir / "eval.json";
  const std::string data = sums(dir, {"--validation", "0.2"});
  const Words words = {"bench",
                       "eval",
                       "--passes",
                       "2",
                       "--profile-passes",
                       "1",
                       "--json",
                       file.string(),
                       "task=language",
                       "data.train=" + data,
                       "data.encoder_len=24",
                       "data.decoder_len=12",
                       "lm.hidden_size=32",
                       "lm.num_heads=2",
                       "lm.layers=1",
                       "runtime.device=cpu",
                       "runtime.threads=1",
                       "lm.h_cycles=1",
                       "lm.l_steps=1",
                       "lm.l_len=2",
                       "lm.h_len=2",
                       "eval.batch_size=8",
                       "run.dir=" + (dir / "runs").string()};
  const Result result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("for 8 samples (min"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("labelled tokens/s"), std::string::npos) << result.out;
  const json out = json::parse(read(file));
  EXPECT_EQ(out.at("samples"), 8);
  EXPECT_GT(out.at("tokens"), 8);
  EXPECT_NEAR(out.at("tokens_per_s").get<double>() / out.at("samples_per_s").get<double>(),
              out.at("tokens").get<double>() / 8, 1e-6);
  EXPECT_GT(out.at("profile").at("kernels").at(0).at("ms_per_pass"), 0);
  EXPECT_FALSE(fs::exists(dir / "runs"));
  expect_refusal(ExitCode::usage, with(words, {"data.test=none"}), {"no validation slice", "data.test"}, {},
                 /*alone=*/false);
}

// By the data alone can they be told.
TEST(SettingsOfLanguageModels, ThatTheDataHaveNoUseForAreRefused) {
  const TempDir dir;
  const Words settings = {
      "task=language", "lm.arch=decoder",      "data.train=" + sums(dir),           "data.document_masks=true",
      "train.steps=2", "optim.warmup_steps=0", "run.dir=" + (dir / "runs").string()};
  for (const Words& command : {Words{"train"}, Words{"bench", "step"}, Words{"bench", "eval"}}) {
    expect_refusal(ExitCode::usage, with(command, settings),
                   {"data.document_masks = true (command line) has no effect", "holds triples", "leave it out"});
  }
  EXPECT_FALSE(fs::exists(dir / "runs"));
}

const Words kCutDecoder = {"plan",
                           "--gpu",
                           "A100",
                           "--vocab-size",
                           "32000",
                           "task=language",
                           "lm.arch=decoder",
                           "data.encoder_len=0",
                           "lm.layers=32",
                           "lm.hidden_size=4096",
                           "lm.num_heads=32",
                           "lm.inner=11008",
                           "data.decoder_len=2048",
                           "train.global_batch_size=8",
                           "train.micro_batch_size=1",
                           "lm.recompute=true"};

TEST(PlanOfLanguageModels, OfAMesh) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const Result result = run(with(kCutDecoder, {"--ranks", "4,8", "parallel.tensor=4", "--json", file.string()}));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"parts of the model", "tensor axis", "activations", "axis: tensor", "share of its matrix products"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
  const json plan = json::parse(read(file)).at("plans").at(1);
  EXPECT_EQ(plan.at("tensor"), 4);
  EXPECT_EQ(plan.at("data_ranks"), 2);
  double exposed = 0, bytes = 0;
  for (const json& axis : plan.at("axes")) {
    exposed += axis.at("exposed_ms").get<double>();
    bytes += axis.at("bytes").get<double>();
  }
  EXPECT_NEAR(exposed, plan.at("exposed_ms").get<double>(), 1e-9 * exposed);
  EXPECT_EQ(bytes, plan.at("bytes").get<double>());
  expect_refusal(ExitCode::usage, with(kCutDecoder, {"parallel.tensor=4"}), {"parallel.tensor = 4", "--ranks"});
  expect_refusal(ExitCode::usage, with(kCutDecoder, {"--ranks", "6", "parallel.tensor=4"}),
                 {"6 ranks cannot be divided", "parallel.tensor = 4"});
}

TEST(PlanOfLanguageModels, TheBestMesh) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const Result result = run(with(kCutDecoder, {"--ranks", "8", "--best", "--json", file.string()}));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"exposed: tensor", "not fit: tensor=1 zero=0", "assumed"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
  const json best = json::parse(read(file));
  EXPECT_EQ(best.at("meshes").get<size_t>(), best.at("fitting").get<size_t>() + best.at("too_large").size());
  ASSERT_GE(best.at("best").size(), 3U);
  EXPECT_GE(best.at("best").at(0).at("samples_per_s"), best.at("best").at(1).at("samples_per_s"));

  const Result small = run(with(kCutDecoder, {"--ranks", "1", "--best"}));
  ASSERT_EQ(small.code, 0) << small.err;
  for (const char* part : {"no mesh of 1 ranks fits", "the smallest takes", "no micro-batch of it fits"}) {
    EXPECT_NE(small.out.find(part), std::string::npos) << part << " is not in:\n" << small.out;
  }
}

}  // namespace
}  // namespace hrm
