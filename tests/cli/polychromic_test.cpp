// A causal language model that learns from its own answers, run as users do: what its log says of its time, what a
// resume may change, what bench says that it measured.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;
using Words = std::vector<std::string>;

class PolychromicRun : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result made = run({"data", "answers", "--train", "20", "--validation", "5", "--test", "5", "--out", data()});
    ASSERT_EQ(made.code, 0) << made.err;
    fs::create_directories(dir / "model");
    std::ofstream(dir / "model" / "config.json")
        << R"({"model_type": "qwen3", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
               "max_position_embeddings": 128})";
  }

  std::string data() const { return (dir / "data").string(); }

  Words with_settings(Words words, const Words& more) const {
    const Words settings{"task=polychromic",
                         "run.dir=" + (dir / "runs").string(),
                         "hf.model=" + (dir / "model").string(),
                         "hf.weights=random",
                         "hf.tokenizer=" + data(),
                         "data.train=" + data(),
                         "chat.template=plain",
                         "chat.max_length=60",
                         "polychromic.diversity_metric=bleu",
                         "polychromic.n_generations=3",
                         "polychromic.max_generation_length=8",
                         "lora.r=4",
                         "optim.warmup_steps=0",
                         "train.global_batch_size=4",
                         "train.steps=2",
                         "train.log_every=1",
                         "runtime.device=cpu",
                         "runtime.threads=1"};
    words.insert(words.end(), settings.begin(), settings.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  TempDir dir;
};

// By a configuration, by a run, and by a folder of transformers.
TEST_F(PolychromicRun, IsTimedAsItWrites) {
  const fs::path file = dir / "bench.json";
  const auto timed = [&](const Words& more) {
    const Words start{"bench", "generate", "--rows", "1,3", "--prompt", "5", "--new", "4", "--passes", "1", "--json"};
    Words words = start;
    words.push_back(file.string());
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run(words);
    ASSERT_EQ(result.code, 0) << result.err;
    const json out = json::parse(std::ifstream(file));
    EXPECT_EQ(out.at("vocabulary"), 264);
    ASSERT_EQ(out.at("runs").size(), 2U);
    EXPECT_EQ(out.at("runs")[1].at("rows"), 3);
    for (const json& one : out.at("runs")) EXPECT_GT(one.at("tokens_per_s"), 0);
  };
  timed(with_settings({}, {}));
  std::ofstream(dir / "timed.json") << json{{"task", "polychromic"}, {"hf", {{"model", (dir / "model").string()}}}};
  timed({"--config", (dir / "timed.json").string(), "hf.weights=random", "lora.r=0", "polychromic.objective=none",
         "runtime.device=cpu"});
  ASSERT_EQ(run(with_settings({"train"}, {})).code, 0);
  const std::string trained = (dir / "runs/run").string(), folder = (dir / "whole").string();
  timed({"runtime.device=cpu", "--checkpoint", trained});
  ASSERT_EQ(run({"export", "--checkpoint", trained, "--to", "hf", "--out", folder}).code, 0);
  timed({"runtime.device=cpu", "--checkpoint", folder, "chat.template=plain"});

  expect_refusal(ExitCode::usage, with_settings({"bench", "generate", "--vocab-size", "300"}, {}),
                 {"--vocab-size", "config.json"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, {"bench", "generate", "--vocab-size", "300", "--checkpoint", folder},
                 {"--vocab-size", "has its own"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, with_settings({"bench", "generate", "--prompt", "125"}, {}),
                 {"rows of 381 tokens", "max_position_embeddings = 128"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, {"bench", "generate", "task=puzzle"}, {"task=puzzle"}, {}, /*alone=*/false);
}

TEST_F(PolychromicRun, SaysWhereItsTimeGoes) {
  const Result trained = run(with_settings({"train"}, {}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::ifstream file(dir / "runs/run/metrics.jsonl");
  size_t windows = 0;
  for (std::string line; std::getline(file, line);) {
    const json values = json::parse(line);
    if (!values.contains("perf/step_ms")) continue;
    ++windows;
    const auto value = [&](const std::string& name) { return values.at("perf/" + name).get<double>(); };
    EXPECT_NEAR(value("tokens_per_s"), values.at("train/tokens").get<double>() / value("step_ms") * 1e3,
                1e-6 * value("tokens_per_s"));
    // Rows as wide as they are padded to: of prompts, responses and answers. Each token goes forward and back once.
    EXPECT_NEAR(value("forward_tokens_per_s") * value("forward_ms"),
                value("backward_tokens_per_s") * value("backward_ms"), 1e-6 * value("step_ms"));
    EXPECT_GT(value("forward_tokens_per_s") * value("forward_ms") / 1e3, values.at("train/tokens").get<double>());
    for (const char* part : {"prefill", "decode", "diversity"}) {
      EXPECT_GT(value(std::string(part) + "_tokens_per_s"), 0) << part;
    }
    // The progress line begins with what took longest, as in " | decode 41 %".
    std::string longest = "merge";
    for (const char* part : {"prefill", "decode", "diversity", "forward", "backward", "optimizer"}) {
      if (value(std::string(part) + "_ms") > value(longest + "_ms")) longest = part;
    }
    std::ostringstream share;
    share << " tok/s | " << longest << ' ' << std::lround(100 * value(longest + "_ms") / value("step_ms")) << " %";
    EXPECT_NE(trained.err.find(share.str()), std::string::npos) << share.str() << " is not in:\n" << trained.err;
  }
  EXPECT_EQ(windows, 2U);
}

TEST_F(PolychromicRun, ResumesWithAnotherWayThroughTheModel) {
  ASSERT_EQ(run(with_settings({"train"}, {})).code, 0);
  expect_refusal(ExitCode::usage, with_settings({"train"}, {"train.steps=3", "polychromic.n_generations=4"}),
                 {"polychromic.n_generations = 4", "was trained with 3"}, {}, /*alone=*/false);
  // The same step but for rounding, with less memory.
  const Result less = run(with_settings({"train"}, {"train.steps=3", "polychromic.share_prompts=answers"}));
  EXPECT_EQ(less.code, 0) << less.err;
  EXPECT_NE(less.err.find("changed since the checkpoint: polychromic.share_prompts, train.steps"), std::string::npos)
      << less.err;
}

TEST_F(PolychromicRun, BenchNamesTheModel) {
  const fs::path file = dir / "step.json";
  const Result result = run(with_settings({"bench", "step", "--steps", "1", "--warmup", "1", "--settle", "0",
                                           "--profile-steps", "0", "--json", file.string()},
                                          {}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(read(file)).at("model"), (dir / "model").string());
}

// From config.json alone, or with prompts as long as those of the data.
TEST_F(PolychromicRun, IsPlanned) {
  const fs::path file = dir / "plan.json";
  const std::string model = "hf.model=" + (dir / "model").string();
  const Words start{"plan",
                    "--gpu",
                    "H200",
                    "--json",
                    file.string(),
                    "task=polychromic",
                    model,
                    "lora.r=4",
                    "chat.max_length=60",
                    "polychromic.max_generation_length=8"};
  const auto planned = [&](const Words& more) {
    Words words = start;
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    for (const char* part : {"frozen weights", "gradients", "activations kept", "= peak in tensors", "matrix products",
                             "adapters", "samples/s", "assumed"}) {
      EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
    }
    return json::parse(read(file));
  };
  const Words bleu{"polychromic.diversity_metric=bleu"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const json sampled = planned(with(bleu, {"--seq-len", "30"}));
  EXPECT_EQ(sampled.at("positions"), 59);
  EXPECT_GT(sampled.at("frozen_parameters"), sampled.at("parameters"));
  const json of_data = planned(with(bleu, {"hf.tokenizer=" + data(), "data.train=" + data(), "chat.template=plain"}));
  EXPECT_EQ(of_data.at("parameters"), sampled.at("parameters"));
  EXPECT_NE(of_data.at("time"), sampled.at("time")) << "its prompts are of another length";
  const auto refused = [&](const Words& more, const std::vector<std::string>& parts) {
    expect_refusal(ExitCode::usage, with(start, more), parts, {}, /*alone=*/false);
  };
  refused(bleu, {"data.train is empty", "--seq-len"});
  refused(with(bleu, {"--seq-len", "60"}), {"prompts of 60 tokens leave no room", "chat.max_length = 60"});
  refused(with(bleu, {"--seq-len", "30", "--vocab-size", "100"}), {"--vocab-size", "config.json"});
  const Words plain{"plan", "--gpu", "H200", "task=polychromic", model, "polychromic.objective=none"};
  expect_refusal(ExitCode::usage, with(plain, {"--seq-len", "30"}), {"--seq-len", "samples no answers"}, {}, false);
  EXPECT_NE(run(with(plain, {"chat.max_length=60", "--ranks", "1,2"})).out.find("gradients"), std::string::npos);
  expect_refusal(ExitCode::checkpoint, {"plan", "task=polychromic", "hf.model=nowhere", "polychromic.objective=none"},
                 {"nowhere"}, {}, false);
}

}  // namespace
}  // namespace hrm
