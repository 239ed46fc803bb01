// The life of a polychromic training: it learns, is resumed, on ranks, evaluated, exported and opened elsewhere.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "commands/answer_report.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::answers_folder;
using testing::fresh_folder;
using testing::kAgain;
using testing::kGrpo;
using testing::kSemantic;
using testing::metrics_without_timing;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::with;

std::vector<nlohmann::json> read_metrics(const fs::path& dir) {
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Polychromic, CrossEntropyFallsAndRewardsRise) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic learns(dir / "learns", {"train.steps=30", "train.log_every=5", "lora.r=0", "optim.warmup_steps=2"});
  learns.trainer.start_fresh();
  learns.trainer.run();
  const auto of = [](const nlohmann::json& line, const char* key) { return line.at(key).get<double>(); };
  auto lines = read_metrics(dir / "learns");
  EXPECT_LT(of(lines[5], "train/cross_entropy"), 0.6 * of(lines[0], "train/cross_entropy"));
  // A window's time is that of its own steps, the last ones, too: what is left when all of their answers are sampled
  // holds what the device did. Of a window that misses a sampling less would be left.
  for (size_t i = 0; i < 6; ++i) {
    const auto sum = [&](std::initializer_list<const char*> parts) {
      double all = 0;
      for (const char* part : parts) {
        const double ms = of(lines[i], (std::string("perf/") + part).c_str());
        EXPECT_GE(ms, 0) << part << ", window " << i;
        all += ms;
      }
      return all;
    };
    const double sampled = sum({"merge_ms", "prefill_ms", "decode_ms", "encode_ms", "diversity_ms"}),
                 step = of(lines[i], "perf/step_ms"), train = of(lines[i], "perf/train_ms");
    EXPECT_NEAR(sampled + train, step, 1e-9 * step) << "window " << i;
    EXPECT_GE(train, sum({"forward_ms", "backward_ms", "optimizer_ms"})) << "window " << i;
    for (const char* part : {"prefill_ms", "decode_ms", "diversity_ms", "prefill_tokens_per_s", "decode_tokens_per_s",
                             "forward_ms", "backward_ms", "optimizer_ms"}) {
      EXPECT_GT(of(lines[i], (std::string("perf/") + part).c_str()), 0) << part << ", window " << i;
    }
  }

  // Longer answers are worth more, up to a length.
  SmallPolychromic rewarded(dir / "rewarded", with(kGrpo, {"train.steps=40", "train.log_every=10", "lora.r=0",
                                                           "grpo.rewards=length", "grpo.max_completion_length=24"}));
  rewarded.trainer.start_fresh();
  rewarded.trainer.run();
  lines = read_metrics(dir / "rewarded");
  EXPECT_GT(of(lines[3], "train/reward"), of(lines[0], "train/reward"));
  EXPECT_FALSE(lines[0].contains("train/cross_entropy")) << "of steps that have none";
}

// Two ranks keep what one rank keeps, so that a run goes on with another number of them in the middle of a batch.
TEST(Polychromic, AnswersToLearnFromAgainAreKeptForAnyNumberOfRanks) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(kAgain, {"train.steps=2", "train.checkpoint_every=2"});
  SmallPolychromic one(dir / "one", more);
  one.trainer.start_fresh();
  one.trainer.run();
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallPolychromic run(dir / "two", more, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
  const auto found = checkpoint::find_latest_valid(dir / "two" / "small");
  ASSERT_TRUE(found);
  SmallPolychromic next(dir / "two", with(more, {"train.steps=4"}));
  next.trainer.resume(found->dir, found->meta.info);
  const auto want = one.tensors(), got = next.tensors();
  for (const char* name : {"answers.ids", "answers.labels"})
    EXPECT_TRUE(at::equal(want.at(name), got.at(name))) << name;
  for (const char* name : {"answers.log_p", "answers.advantages"}) {
    EXPECT_TRUE(at::allclose(want.at(name), got.at(name), 1e-3, 1e-4)) << name;
  }
  EXPECT_GT(want.at("answers.advantages").abs().max().item<double>(), 0);
  EXPECT_EQ(next.trainer.run(), train::Outcome::finished);
  std::vector<double> sampled;
  for (const auto& line : read_metrics(dir / "two")) {
    if (line.contains("train/reward_updates")) sampled.push_back(line.value("train/reward_steps", 0.0));
  }
  EXPECT_EQ(sampled.back(), 1) << "steps 3 and 4: one goes on with the answers, one has new ones";
}

struct PolychromicVariant {
  std::string name;
  Overrides overrides;
};
class PolychromicLife : public ::testing::TestWithParam<PolychromicVariant> {};

TEST_P(PolychromicLife, ResumesBitIdentically) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam().overrides, {"train.eval_every=4"});
  SmallPolychromic straight(dir / "straight", more);
  straight.trainer.start_fresh();
  ASSERT_EQ(straight.trainer.run(), train::Outcome::finished);

  const Overrides half = with(more, {"train.checkpoint_every=5"});
  {
    SmallPolychromic first(dir / "resumed", half);
    first.trainer.start_fresh();
    first.trainer.run();
  }
  fs::remove_all(checkpoint::list_checkpoints(dir / "resumed" / "small").front());
  SmallPolychromic second(dir / "resumed", half);
  const auto found = checkpoint::find_latest_valid(dir / "resumed" / "small");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->meta.step, 5);
  second.trainer.resume(found->dir, found->meta.info);
  EXPECT_EQ(second.trainer.run(), train::Outcome::finished);
  const auto want = straight.tensors(), got = second.tensors();
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "straight"), metrics_without_timing(dir / "resumed"));
}

TEST_P(PolychromicLife, TwoRanksTrainTheSame) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam().overrides, {"train.micro_batch_size=4", "lora.dropout=0"});
  SmallPolychromic one(dir / "one", more);
  one.trainer.start_fresh();
  one.trainer.run();
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallPolychromic run(dir / "two", more, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
  const auto a = read_metrics(dir / "one"), b = read_metrics(dir / "two");
  ASSERT_EQ(a.size(), b.size());
  // Sampled answers follow the weights to the bit, so that rounding parts the runs some steps later: the first window.
  for (const auto& [key, value] : a.front().items()) {
    if (!key.starts_with("train/") || key == "train/update_ratio") continue;
    const double want = value.get<double>(), got = b.front().at(key).get<double>();
    EXPECT_NEAR(got, want, 2e-3 * std::max(1.0, std::abs(want))) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, PolychromicLife,
    ::testing::Values(
        PolychromicVariant{"lora", with(kSemantic, {"lora.dropout=0.1"})}, PolychromicVariant{"full", {"lora.r=0"}},
        PolychromicVariant{"fake_int8", {"lora.r=0", "precision.fake_quantize=int8", "optim.ema=0.9"}},
        PolychromicVariant{"compat", {"polychromic.objective=compat"}},
        PolychromicVariant{"packed", {"chat.packing=true", "chat.pool_batches=2"}},
        PolychromicVariant{"marginal", with(kSemantic, {"polychromic.objective=marginal",
                                                        "polychromic.compute_diversity_every_n_steps=2"})},
        PolychromicVariant{"pairs",
                           {"polychromic.n_generations=2", "polychromic.diversity_metric=distinct", "hf.recompute=true",
                            "lora.rslora=true"}},
        PolychromicVariant{"grpo", with(kGrpo, {"grpo.diversity_weight=0.1"})},
        PolychromicVariant{"again", with(kAgain, {"grpo.epsilon=0.01"})},
        PolychromicVariant{"nf4", with(kSemantic, {"hf.quantize=nf4", "lora.dropout=0.1", "lora.targets=q_proj,up_proj",
                                                   "grpo.start_step=5", "grpo.rewards=length", "grpo.num_generations=3",
                                                   "grpo.max_completion_length=8", "grpo.beta=0.05"})},
        PolychromicVariant{"fp8_blocks", {"lora.r=0", "precision.blocks=fp8", "precision.fp8_warmup_steps=3"}},
        PolychromicVariant{"fp8_blocks_again",
                           with(kAgain, {"lora.r=0", "precision.blocks=fp8", "precision.fp8_warmup_steps=1",
                                         "grpo.num_generations=3", "precision.compute=bf16"})},
        PolychromicVariant{"fp8", with(kSemantic, {"hf.quantize=fp8", "lora.dropout=0.1"})},
        PolychromicVariant{"int8", {"hf.quantize=int8", "lora.targets=q_proj,up_proj", "hf.recompute=true"}},
        // The checkpoint is of the phase before.
        PolychromicVariant{"before",
                           {"grpo.start_step=7", "grpo.rewards=answer,length", "grpo.num_generations=3",
                            "grpo.max_completion_length=8"}},
        PolychromicVariant{"phases", with(kSemantic, {"grpo.start_step=5", "grpo.rewards=relevance,length",
                                                      "grpo.num_generations=3", "grpo.max_completion_length=8",
                                                      "grpo.beta=0.05", "grpo.mask_truncated_completions=true",
                                                      "grpo.reward_combination=separately_normalised"})}),
    [](const auto& info) { return info.param.name; });

// What a checkpoint of an adapter holds, and that frozen weights stay.
TEST(Polychromic, TrainsTheAdapterAlone) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic run(dir, {"train.steps=3"});
  std::map<std::string, at::Tensor> before;
  for (const auto& item : run.task.lm().model->named_parameters()) before[item.key()] = item.value().detach().clone();
  run.trainer.start_fresh();
  run.trainer.run();
  size_t changed = 0;
  for (const auto& item : run.task.lm().model->named_parameters()) {
    const bool adapter = item.key().find(".lora.") != std::string::npos;
    EXPECT_EQ(at::equal(before.at(item.key()), item.value()), !adapter) << item.key();
    changed += adapter ? 1 : 0;
  }
  EXPECT_EQ(changed, 2u * 4 * 2);
  run.task.write_files(dir / "small");
  const auto found = checkpoint::find_latest_valid(dir / "small");
  ASSERT_TRUE(found);
  const checkpoint::ModelWeights weights = checkpoint::load_weights(found->dir);
  EXPECT_EQ(weights.raw.size(), changed);
  for (const auto& [name, tensor] : weights.raw) EXPECT_NE(name.find(".lora."), std::string::npos) << name;
  for (const char* file : {"hf/config.json", "hf/tokenizer.json", "hf/tokenizer_config.json"}) {
    EXPECT_TRUE(fs::exists(dir / "small" / file)) << file;
  }
}

// A run trained on copies of the model's folder and the tokenizer's, which may then be changed.
fs::path run_on_copies(const fs::path& dir, const fs::path& model, const Overrides& more) {
  fs::copy(model, dir / "model", fs::copy_options::recursive);
  fs::create_directory(dir / "tokens");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(answers_folder() / "data" / name, dir / "tokens" / name);
  }
  Overrides all{"train.steps=1", "optim.warmup_steps=0", "hf.model=" + (dir / "model").string(),
                "hf.tokenizer=" + (dir / "tokens").string()};
  all.insert(all.end(), more.begin(), more.end());
  SmallPolychromic run(dir, all);
  run.trainer.start_fresh();
  run.trainer.run();
  run.task.write_files(dir / "small");
  return dir / "small";
}

TEST(Polychromic, RunsOpenWithoutTheFoldersThatTheyCameFrom) {
  for (const char* adapter : {"lora.r=4", "lora.r=0"}) {
    const auto dir = fresh_folder("moved");
    const fs::path run = run_on_copies(dir, answers_folder() / "model", {adapter});
    const tasks::CausalInference before = tasks::open_causal_checkpoint(run, {}, "raw");
    EXPECT_EQ(before.lm.model->limits().max_tokens, 128) << "answers as long as the model allows, not the training";
    fs::remove_all(dir / "model");
    fs::remove_all(dir / "tokens");
    const tasks::CausalInference after = tasks::open_causal_checkpoint(run, {}, "raw");
    const auto wanted = before.lm.model->named_parameters();
    for (const auto& item : after.lm.model->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << adapter << " " << item.key();
    }
  }
}

TEST(Polychromic, AnAdapterIsOpenedBesideItsOwnModelAlone) {
  const auto dir = fresh_folder("frozen");
  const fs::path base = test::source_dir() + "/tests/fixtures/qwen3_tied";
  const fs::path run = run_on_copies(dir, base, {"hf.weights=load"});
  tasks::open_causal_checkpoint(run, {}, "raw");
  const fs::path weights = dir / "model" / "model.safetensors";
  std::string bytes = read_text(weights, ExitCode::data);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text_atomic(weights, bytes);
  test::expect_error(ExitCode::checkpoint, {"are not those that the adapter", "hf.model=FOLDER"},
                     [&] { tasks::open_causal_checkpoint(run, {}, "raw"); });
  tasks::open_causal_checkpoint(run, {"hf.model=" + base.string()}, "raw");

  fs::remove_all(dir / "model");
  commands::ExportOptions options;
  options.checkpoint = run.string();
  options.to = "peft";
  options.out = (dir / "out").string();
  test::expect_error(ExitCode::checkpoint, {"was trained beside the model in", "none here", "--base"},
                     [&] { commands::run_export(options); });
  options.base = base.string();
  EXPECT_EQ(commands::run_export(options), 0);
  EXPECT_TRUE(fs::exists(dir / "out" / "adapter_config.json"));
  options.to = "checkpoint";
  options.out = (dir / "checkpoint").string();
  test::expect_error(ExitCode::usage, {"puzzle and language models", "--to hf or peft"},
                     [&] { commands::run_export(options); });
  EXPECT_FALSE(fs::exists(options.out));
}

// How transformers writes and stops stays that of the model that was fine-tuned, wherever its folder is now.
TEST(Polychromic, ExportKeepsWhatStandsBesideTheWeights) {
  const auto dir = fresh_folder("export");
  const fs::path model = dir / "base";
  fs::copy(answers_folder() / "model", model, fs::copy_options::recursive);
  const std::string generation = R"({"eos_token_id": [2, 5], "top_k": 20})", jinja = "{{ messages[0].content }}";
  write_text_atomic(model / "generation_config.json", generation);
  const fs::path run = run_on_copies(dir, model, {"lora.r=0"});
  write_text_atomic(dir / "tokens" / "chat_template.jinja", jinja);
  SmallPolychromic again(
      dir, {"lora.r=0", "hf.model=" + (dir / "model").string(), "hf.tokenizer=" + (dir / "tokens").string()});
  again.task.write_files(run);
  const std::string tokens = read_text(dir / "tokens" / "tokenizer_config.json", ExitCode::data);
  fs::remove_all(dir / "model");
  fs::remove_all(dir / "tokens");
  commands::ExportOptions options;
  options.checkpoint = run.string();
  options.to = "hf";
  options.out = (dir / "out").string();
  EXPECT_EQ(commands::run_export(options), 0);
  const auto text = [&](const char* name) { return read_text(dir / "out" / name, ExitCode::data); };
  EXPECT_EQ(text("generation_config.json"), generation);
  EXPECT_EQ(text("chat_template.jinja"), jinja);
  EXPECT_EQ(text("tokenizer_config.json"), tokens);
  EXPECT_EQ(nlohmann::json::parse(text("config.json")).at("eos_token_id"), nlohmann::json::array({2, 5}));
}

// eval --report keeps each prompt's answers, and what is made of them.
TEST(Polychromic, EvaluatesIntoAReport) {
  const auto dir = fresh_folder("report");
  const fs::path run = run_on_copies(dir, answers_folder() / "model", {"lora.r=4"});
  commands::EvalOptions options;
  options.checkpoint = run.string();
  options.data = (answers_folder() / "data" / "test.jsonl").string();
  options.overrides = {"eval.answers=3", "eval.answer_tokens=8"};
  options.report = (dir / "report").string();
  EXPECT_EQ(commands::run_eval(options), 0);
  const std::string file = (dir / "report" / "eval.json").string();
  const commands::ReportedEvaluation read = commands::parse_evaluation(read_text(file, ExitCode::data), file);
  ASSERT_EQ(read.prompts.size(), 10u);
  for (const commands::ReportedPrompt& prompt : read.prompts) {
    EXPECT_EQ(prompt.sampled.size(), 3u);
    EXPECT_EQ(prompt.right.size(), 3u);
    EXPECT_GE(prompt.answers.size(), 4u);
    EXPECT_EQ(prompt.values.count("pass@3"), 1u);
  }
  ASSERT_TRUE(read.loss);
  EXPECT_GT(*read.loss, 0);
  // Of as many responses to each prompt their mean is the loss of all, whose responses differ little in length.
  double losses = 0;
  for (const commands::ReportedPrompt& prompt : read.prompts) losses += prompt.values.at("response_loss") / 10;
  EXPECT_NEAR(losses, *read.loss, 0.05 * *read.loss);
  for (const char* name : {"report.md", "answers.html", "front.svg"}) EXPECT_TRUE(fs::exists(dir / "report" / name));
  test::expect_error(ExitCode::usage, {"holds eval.json already", "--report"}, [&] { commands::run_eval(options); });
  options.overrides = {"eval.answers=0"};
  test::expect_error(ExitCode::usage, {"--report", "eval.answers is 0"}, [&] { commands::run_eval(options); });
}

}  // namespace
}  // namespace hrm
