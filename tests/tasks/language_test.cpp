// The language task: its loss however a batch is cut, its life from start to resume, its evaluation.

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/data/batch.h"
#include "hrm/data/language_open.h"
#include "hrm/tasks/language_inference.h"
#include "hrm/tasks/language_rows.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "train/small_language.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using test::Overrides;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallLanguage;

const Overrides kDecoder{"lm.arch=decoder"};
const Overrides kMoe{"moe.experts=4", "moe.inner=32", "moe.bias_rate=0.01", "moe.z_weight=0.001", "moe.jitter=0.05"};

Overrides packed() {
  return {"lm.arch=decoder", "data.train={text}", "data.encoder_len=0", "data.decoder_len=32",
          "data.document_masks=true"};
}

std::string sentence_of(const Overrides& overrides, ExitCode code = ExitCode::usage) {
  try {
    SmallLanguage run(fresh_folder("refused"), overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::vector<nlohmann::json> metrics(const fs::path& dir) {
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(LanguageRows, PromptStandsInFrontOfTheAnswer) {
  data::LanguageBatch batch;
  batch.encoder_ids = at::tensor({7, 8, 0, 9, 9, 9}, at::kLong).view({2, 3});
  batch.encoder_mask = at::tensor({1, 1, 0, 1, 1, 1}, at::kLong).view({2, 3}).to(at::kBool);
  batch.decoder_ids = at::tensor({1, 5, 2, 3}, at::kLong).view({2, 2});
  batch.labels = at::tensor({5, 6, 3, -100}, at::kLong).view({2, 2});
  const tasks::LanguageRows rows = tasks::language_rows(batch, /*prompted=*/false);
  const at::Tensor labels = at::tensor({-100, -100, 5, 6, -100, -100, -100, -100, 3, -100}, at::kLong).view({2, 5});
  EXPECT_TRUE(at::equal(rows.labels, labels)) << rows.labels;
  EXPECT_TRUE(at::equal(rows.inputs.ids[0].narrow(0, 0, 4), at::tensor({7, 8, 1, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.inputs.ids[1], at::tensor({9, 9, 9, 2, 3}, at::kLong)));
  EXPECT_FALSE(rows.inputs.prompt_ids.defined());
}

// Rows have different numbers of labels, so that a mean of means would be another loss.
TEST(Language, MicroBatchesMakeTheSameStep) {
  for (const Overrides& kind : {kDecoder, Overrides{"objective.deep_supervision=0.5"},
                                Overrides{"moe.experts=4", "moe.inner=32", "moe.load_weight=0"}}) {
    const auto gradients = [&](const char* micro) {
      SmallLanguage run(fresh_folder("micro"), with(kind, {"train.micro_batch_size=" + std::string(micro)}));
      run.task.parameters().refresh_compute();
      run.task.load_batch(1, 1);
      at::Tensor sums = at::zeros({static_cast<int64_t>(run.task.metric_names().size())}, at::kDouble);
      const int64_t count = 8 / std::stoi(micro);
      for (int64_t i = 0; i < count; ++i) run.task.forward_backward(i, {}, sums);
      std::vector<at::Tensor> out{sums.narrow(0, 0, 3)};
      for (const nn::Parameter& parameter : run.task.parameters().all()) {
        out.push_back(parameter.master.grad().detach().clone());
      }
      return out;
    };
    const auto whole = gradients("8"), parts = gradients("2");
    ASSERT_EQ(whole.size(), parts.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      const double scale = std::max(1e-3, whole[i].abs().max().item<double>());
      EXPECT_LE((whole[i] - parts[i]).abs().max().item<double>(), 1e-5 * scale + 1e-7) << i;
    }
    EXPECT_GT(whole[0][2].item<double>(), 8);  // labelled tokens
  }
}

struct LanguageVariant {
  std::string name;
  Overrides overrides;
};
class LanguageLife : public ::testing::TestWithParam<LanguageVariant> {};

TEST_P(LanguageLife, ResumesBitIdentically) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam().overrides, {"train.eval_every=4"});
  SmallLanguage straight(dir / "straight", more);
  straight.trainer.start_fresh();
  ASSERT_EQ(straight.trainer.run(), train::Outcome::finished);

  const Overrides half = with(more, {"train.checkpoint_every=5"});
  {
    SmallLanguage first(dir / "resumed", half);
    first.trainer.start_fresh();
    first.trainer.run();
  }
  fs::remove_all(checkpoint::list_checkpoints(dir / "resumed" / "small").front());
  SmallLanguage second(dir / "resumed", half);
  const auto found = checkpoint::find_latest_valid(dir / "resumed" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 5);
  second.trainer.resume(found->dir, found->meta.info);
  ASSERT_EQ(second.trainer.run(), train::Outcome::finished);
  const auto expected = straight.tensors(), got = second.tensors();
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "straight"), metrics_without_timing(dir / "resumed"));
}

TEST_P(LanguageLife, TwoRanksTrainTheSame) {
  const auto dir = fresh_folder("runs");
  SmallLanguage one(dir / "one", GetParam().overrides);
  one.trainer.start_fresh();
  one.trainer.run();
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallLanguage run(dir / "two", GetParam().overrides, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
  const auto a = metrics(dir / "one"), b = metrics(dir / "two");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"train/cross_entropy", "train/tokens", "eval/loss", "eval/exact_accuracy"}) {
      if (!a[i].contains(key)) continue;
      const double want = a[i][key].get<double>();
      // Muon's directions have all singular values near 1, and so has what rounding leaves in them.
      const double tolerance = GetParam().name == "muon" ? 2e-3 : 2e-4;
      EXPECT_NEAR(b[i].at(key).get<double>(), want, tolerance * std::max(1.0, std::abs(want))) << key << " line " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, LanguageLife,
    ::testing::Values(
        LanguageVariant{"hrm", {"optim.ema=0.9", "train.micro_batch_size=4"}}, LanguageVariant{"decoder", kDecoder},
        LanguageVariant{"zero1", {"parallel.zero=1", "optim.ema=0.9"}},
        LanguageVariant{"zero2", {"lm.arch=decoder", "parallel.zero=2", "train.micro_batch_size=2"}},
        LanguageVariant{"packed", packed()},
        LanguageVariant{"fake_int8", {"lm.arch=decoder", "precision.fake_quantize=int8", "optim.ema=0.9"}},
        LanguageVariant{"fake_fp8", {"precision.fake_quantize=fp8", "parallel.zero=1", "lm.recompute=true"}},
        LanguageVariant{"cross_attention", {"lm.bridge=cross_attention", "lm.qk_norm=true", "lm.kv_heads=1"}},
        LanguageVariant{"mamba2",
                        {"lm.encoder=mamba2", "lm.mamba_head_dim=16", "lm.mamba_state=8", "lm.mamba_chunk=8"}},
        LanguageVariant{"prototype", {"lm.style=prototype", "objective.halting=0.1"}},
        LanguageVariant{"muon", {"optim.name=muon", "optim.lr=0.02", "lm.gate_warmup_steps=3"}}),
    [](const auto& info) { return info.param.name; });

// Its noise follows the place in the micro-batch, and its loss is one of micro-batches: ranks change both a little.
INSTANTIATE_TEST_SUITE_P(
    Experts, LanguageLife,
    ::testing::Values(LanguageVariant{"moe", {"moe.experts=4", "moe.inner=32", "moe.load_weight=0"}},
                      LanguageVariant{"swiglu_moe",
                                      {"lm.arch=decoder", "moe.experts=4", "moe.inner=32", "moe.activation=swiglu",
                                       "moe.load_weight=0", "moe.normalize=true"}},
                      LanguageVariant{"prototype_moe",
                                      {"lm.style=prototype", "moe.experts=4", "moe.inner=32", "moe.load_weight=0",
                                       "moe.capacity_factor=8"}}),
    [](const auto& info) { return info.param.name; });

class LanguageExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(LanguageExperts, WithAllTheirOptionsResumeBitIdentically) {
  const auto dir = fresh_folder("runs");
  const Overrides moe = with(kMoe, {cat("moe.activation=", GetParam()), "moe.shared_experts=1"});
  SmallLanguage straight(dir / "straight", moe);
  straight.trainer.start_fresh();
  straight.trainer.run();
  {
    SmallLanguage first(dir / "resumed", with(moe, {"train.checkpoint_every=3", "train.keep_checkpoints=9"}));
    first.trainer.start_fresh();
    first.trainer.run_steps(0);
    first.trainer.run();
  }
  SmallLanguage second(dir / "resumed", moe);
  const auto at_three = checkpoint::open_checkpoint(dir / "resumed/small/checkpoints/step-000000003");
  second.trainer.resume(at_three.dir, at_three.meta.info);
  second.trainer.run_steps(5);
  const auto expected = straight.tensors(), got = second.tensors();
  int64_t buffers = 0;
  for (const auto& [name, tensor] : expected) {
    if (name.find("loop.") == 0) continue;
    buffers += name.ends_with("choice_bias") || name.ends_with("jitter_step");
    EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  }
  EXPECT_EQ(buffers, 2 * 3);  // one block of the encoder, two of the decoder
  EXPECT_EQ(expected.contains("dec.model.layers.0.mlp.gate_up.weight"), GetParam() == std::string("swiglu"));
}

INSTANTIATE_TEST_SUITE_P(Activations, LanguageExperts, ::testing::Values("gelu", "swiglu"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Language, TheStartTellsOfTheExperts) {
  const SmallLanguage gelu(fresh_folder("gelu"), {"moe.experts=4"});
  const SmallLanguage swiglu(fresh_folder("swiglu"), {"moe.experts=4", "moe.activation=swiglu"});
  const auto has = [](const SmallLanguage& run, const std::string& text) {
    EXPECT_NE(run.task.describe().find(text), std::string::npos) << run.task.describe();
  };
  has(gelu, "gelu, 128 wide, by a product for each expert");
  // 8/3 of the width in whole 256.
  has(swiglu, "swiglu, 256 wide, by a product for each expert");
}

TEST(Language, MetricsTellOfEveryMixture) {
  const auto dir = fresh_folder("runs");
  SmallLanguage run(dir, with(kMoe, {"moe.every=2", "moe.place=decoder", "moe.capacity_factor=0.5"}));
  run.trainer.start_fresh();
  run.trainer.run();
  const auto lines = metrics(dir);
  const nlohmann::json& line = lines.at(1);
  const std::string prefix = "train/moe/dec.model.layers.1.mlp/";
  EXPECT_GT(line.at(prefix + "load_entropy").get<double>(), 0.3);
  EXPECT_LE(line.at(prefix + "load_entropy").get<double>(), 1);
  EXPECT_GE(line.at(prefix + "load_max").get<double>(), 1);
  EXPECT_GE(line.at(prefix + "dropped").get<double>(), 0.4);
  EXPECT_FALSE(line.contains("train/moe/dec.model.layers.0.mlp/load_max"));
  EXPECT_GT(line.at("train/gate").get<double>(), 0);
}

// The byte tokenizer: bits per byte of a text without line ends are the loss over ln 2, but for the ends of documents.
TEST(Language, EvaluatesSlices) {
  const auto dir = fresh_folder("runs");
  const std::string text = testing::text_folder().string();
  SmallLanguage run(
      dir, with(packed(), {"data.test=a:" + text + ",b:" + text, "eval.max_samples=0", "data.document_masks=false"}));
  run.task.parameters().refresh_compute();
  int64_t calls = 0;
  const tasks::NamedValues result = run.task.evaluate([&](const tasks::EvalProgress&) { ++calls; });
  const auto value = [&](const std::string& key) { return tasks::value_of(result, key); };
  EXPECT_GT(calls, 1);
  EXPECT_DOUBLE_EQ(value("a/loss"), value("b/loss"));
  EXPECT_NEAR(value("loss"), value("a/loss"), 1e-9);
  EXPECT_DOUBLE_EQ(value("rows"), 2 * value("a/rows"));
  EXPECT_NEAR(value("loss"), std::log(259.0), 1.5);
  EXPECT_NEAR(value("perplexity"), std::exp(value("loss")), 1e-6 * value("perplexity"));
  // All labels but one of each 4 documents of some 900 bytes stand for a byte.
  EXPECT_NEAR(value("bits_per_byte"), value("loss") / std::numbers::ln2, 0.01 * value("bits_per_byte"));
  EXPECT_GT(value("bits_per_byte"), value("loss") / std::numbers::ln2);
}

TEST(Language, OpenedModelEvaluatesAsTheTrainingDid) {
  const auto dir = fresh_folder("runs");
  tasks::NamedValues want;
  {
    SmallLanguage run(dir, {"optim.ema=0.5"});
    run.trainer.start_fresh();
    run.trainer.run();
    run.task.write_files(dir / "small");
  }
  const tasks::LanguageInference loaded = tasks::open_language_model(dir / "small", {}, "auto");
  EXPECT_TRUE(loaded.averaged);
  EXPECT_EQ(loaded.step, 8);
  ASSERT_TRUE(loaded.text);
  EXPECT_EQ(loaded.text->decode(loaded.text->encode("12 + 3")), "12 + 3");
  tasks::LanguageEvaluation evaluation(
      *loaded.model, tasks::language_eval_options(loaded.config, 1),
      data::open_validation_slices(loaded.config.data, loaded.meta, loaded.config.eval.max_samples), loaded.text,
      at::kCPU);
  const tasks::NamedValues got = evaluation.run([](const tasks::EvalProgress&) {});
  const nlohmann::json line = metrics(dir).back();
  for (const auto& [name, value] : got) EXPECT_EQ(line.at("eval/" + name).get<double>(), value) << name;

  write_text_atomic(dir / "small/tokenizer.json", "{}");
  EXPECT_THROW(tasks::open_language_model(dir / "small", {}, "auto"), Error);
  fs::remove(dir / "small/tokenizer.json");
  try {
    tasks::open_language_model(dir / "small", {}, "auto");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos) << error.what();
  }
}

TEST(Language, EndsEarlyAndStaysEnded) {
  const auto dir = fresh_folder("runs");
  const Overrides more{"optim.lr=0", "train.steps=40", "train.eval_every=2", "train.early_stop_evals=3",
                       "train.checkpoint_every=100"};
  {
    SmallLanguage run(dir, more);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(run.trainer.step(), 8);  // the first evaluation is the best, three others follow
  }
  SmallLanguage again(dir, more);
  const auto found = checkpoint::find_latest_valid(dir / "small");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->meta.step, 8);
  again.trainer.resume(found->dir, found->meta.info);
  EXPECT_TRUE(again.trainer.finished());
  // Switched on later, it begins to count then; switched off, the run goes on.
  SmallLanguage off(dir, {"optim.lr=0", "train.steps=10", "train.eval_every=2"});
  off.trainer.resume(found->dir, found->meta.info);
  EXPECT_FALSE(off.trainer.finished());
}

TEST(Language, RecomputationAndChunksChangeNothing) {
  const auto last = [](const Overrides& more) {
    const auto dir = fresh_folder("runs");
    SmallLanguage run(dir, more);
    run.trainer.start_fresh();
    run.trainer.run();
    return metrics(dir).at(1).at("train/cross_entropy").get<double>();
  };
  const double plain = last({});
  EXPECT_EQ(plain, last({"lm.recompute=true"}));
  EXPECT_EQ(last({"lm.arch=decoder"}), last({"lm.arch=decoder", "lm.recompute=true"}));
  EXPECT_NEAR(plain, last({"objective.chunk=7"}), 1e-5);
}

TEST(Language, FreezesParts) {
  const auto dir = fresh_folder("runs");
  SmallLanguage run(dir, {"lm.freeze=enc, core.h_init"});
  const auto before = run.tensors();
  run.trainer.start_fresh();
  run.trainer.run();
  const auto after = run.tensors();
  for (const auto& [name, tensor] : after) {
    if (name.starts_with("enc.")) {
      EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    }
  }
  EXPECT_FALSE(at::equal(after.at("dec.model.embed_tokens.weight"), before.at("dec.model.embed_tokens.weight")));
  EXPECT_TRUE(at::equal(after.at("core.h_init"), before.at("core.h_init")));
}

TEST(Language, BadInputIsOneSentence) {
  const auto has = [](const std::string& sentence, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(sentence.find(part), std::string::npos) << part << "\n" << sentence;
  };
  has(sentence_of({"data.train="}), {"data.train", "folder of language data"});
  has(sentence_of({"data.train=" + testing::sums_folder().string() + "*x"}), {"*x", "weight"});
  has(sentence_of({"data.train=/nowhere"}, ExitCode::data), {"/nowhere"});
  has(sentence_of({"data.train=" + testing::sums_folder().string() + "," + testing::text_folder().string()},
                  ExitCode::data),
      {testing::sums_folder().string(), testing::text_folder().string()});
  has(sentence_of({"data.test=a:" + testing::sums_folder().string() + ",a:" + testing::sums_folder().string()}),
      {"'a'", "name"});
  has(sentence_of({"model.hidden_size=64"}), {"model.hidden_size", "puzzle"});
  has(sentence_of({"data.encoder_len=0"}), {"data.encoder_len", "prompt"});
  has(sentence_of({"lm.arch=decoder", "objective.halting=1"}), {"objective.halting", "lm.arch"});
  has(sentence_of({"lm.num_heads=3"}), {"lm.num_heads", "2 or 4"});
  has(sentence_of({"lm.positions=4"}), {"lm.positions", "6"});
  has(sentence_of({"lm.freeze=nothing"}), {"nothing"});
  has(sentence_of({"moe.top_k=3"}), {"moe.top_k", "moe.experts"});
  has(sentence_of({"moe.experts=4", "moe.every=3"}), {"moe.every", "2"});
  has(sentence_of({"moe.activation=swiglu"}), {"moe.activation", "moe.experts"});
  has(sentence_of({"moe.experts=4", "moe.activation=relu"}), {"moe.activation", "relu", "swiglu"});
  has(sentence_of({"lm.style=prototype", "lm.qk_norm=true"}), {"lm.qk_norm", "prototype"});
  has(sentence_of({"train.early_stop_evals=2"}), {"train.early_stop_evals", "train.eval_every"});
}

}  // namespace
}  // namespace hrm
