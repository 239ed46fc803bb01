// Training with recursions in fp8, by the reference ops on the CPU.
#include <ATen/record_function.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/start.h"
#include "support/overrides.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::fresh_folder;
using testing::SmallRun;

Overrides with_fp8(const Overrides& more = {}) {
  Overrides all = {"precision.recursions=fp8", "ops.backend=reference", "model.H_cycles=2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides without_fp8(const Overrides& more = {}) {
  Overrides all = {"ops.backend=reference", "model.H_cycles=2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool is_fp8(const std::string& name) {
  return name.starts_with("fp8.");
}

int64_t fp8_steps(SmallRun& run) {
  for (const auto& [name, value] : list_state(run.trainer).integers) {
    if (name == "fp8.steps") return value;
  }
  return -1;
}

TEST(Fp8Training, LearnsAsWithoutAndNotTheSame) {
  const auto dir = fresh_folder("runs");
  SmallRun plain(dir / "plain", without_fp8()), fp8(dir / "fp8", with_fp8());
  EXPECT_EQ(fp8.runtime.precision.name, "fp32 with fp8 recursions");
  plain.trainer.start_fresh();
  plain.trainer.run_steps(8);
  fp8.trainer.start_fresh();
  fp8.trainer.run_steps(8);
  EXPECT_EQ(fp8_steps(fp8), 8);
  const auto want = plain.tensors(), got = fp8.tensors();
  EXPECT_EQ(got.size(), want.size() + 2);
  const at::Tensor slots = got.at("fp8.slots"), history = got.at("fp8.history");
  EXPECT_EQ(history.size(1), 16);
  EXPECT_TRUE((slots.select(1, 0) > 1).all().item<bool>()) << slots;
  EXPECT_TRUE((slots.select(1, 2) == 0).all().item<bool>()) << "maxima are taken up in every step";
  // One entry for each step; the weights have one more, of before the first.
  EXPECT_TRUE((history.narrow(1, 0, 8) > 0).all().item<bool>());
  EXPECT_TRUE((history.narrow(1, 9, 7) == 0).all().item<bool>());
  for (const char* name : {"L_level.layers.0.mlp.down_proj.weight", "carry.z_H"}) {
    const at::Tensor a = got.at(name), b = want.at(name);
    EXPECT_FALSE(at::equal(a, b)) << name;
    EXPECT_GT(at::cosine_similarity(a.flatten(), b.flatten(), 0).item<double>(), 0.95) << name;
  }
}

TEST(Fp8Training, EvaluationsInBetweenChangeNothing) {
  const auto dir = fresh_folder("runs");
  const Overrides averaged = {"optim.ema=0.9", "eval.weights=both"};
  Overrides often = averaged;
  often.push_back("train.eval_every=2");
  SmallRun without(dir / "without", with_fp8(averaged)), with(dir / "with", with_fp8(often));
  for (SmallRun* run : {&without, &with}) {
    run->trainer.start_fresh();
    run->trainer.run();
  }
  const auto want = without.tensors(), got = with.tensors();
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
}

TEST(Fp8Training, ScalesDoNotDependOnTheMicroBatches) {
  const auto dir = fresh_folder("runs");
  SmallRun whole(dir / "whole", with_fp8()), parts(dir / "parts", with_fp8({"train.micro_batch_size=2"}));
  for (SmallRun* run : {&whole, &parts}) {
    run->trainer.start_fresh();
    run->trainer.run_steps(3);
  }
  EXPECT_EQ(fp8_steps(parts), 3);
  const at::Tensor a = whole.tensors().at("fp8.history"), b = parts.tensors().at("fp8.history");
  // Products of other shapes round otherwise, which may move a value by a step of e4m3.
  EXPECT_TRUE(at::allclose(a, b, 0.1, 0)) << a << b;
  EXPECT_TRUE(at::allclose(a.select(1, 2), b.select(1, 2), 1e-3, 0)) << a << b;
}

TEST(Fp8Training, WarmUpIsTrainingWithout) {
  const auto dir = fresh_folder("runs");
  SmallRun plain(dir / "plain", without_fp8()), fp8(dir / "fp8", with_fp8({"precision.fp8_warmup_steps=3"}));
  plain.trainer.start_fresh();
  fp8.trainer.start_fresh();
  plain.trainer.run_steps(3);
  fp8.trainer.run_steps(3);
  EXPECT_EQ(fp8_steps(fp8), 0);
  const auto expect_same = [&](bool same) {
    const auto want = plain.tensors(), got = fp8.tensors();
    int64_t different = 0;
    for (const auto& [name, tensor] : want) different += !at::equal(tensor, got.at(name));
    EXPECT_EQ(different == 0, same) << different << " entries differ";
  };
  expect_same(true);
  plain.task.evaluate([](const tasks::EvalProgress&) {});
  fp8.task.evaluate([](const tasks::EvalProgress&) {});
  expect_same(true);
  plain.trainer.run_steps(1);
  fp8.trainer.run_steps(1);
  EXPECT_EQ(fp8_steps(fp8), 1);
  expect_same(false);
  EXPECT_TRUE((fp8.tensors().at("fp8.slots").select(1, 0) > 1).all().item<bool>());
}

std::filesystem::path trained_fp8(const std::filesystem::path& dir, const Overrides& overrides) {
  SmallRun run(dir, overrides);
  run.trainer.start_fresh();
  run.trainer.run();
  return checkpoint::list_checkpoints(dir / "small").front();
}

TEST(Fp8Training, CanBeSwitchedOnWhenARunGoesOn) {
  const auto dir = fresh_folder("runs");
  const auto found = trained_fp8(dir, without_fp8({"train.steps=4"}));
  SmallRun run(dir, with_fp8({"train.steps=8"}));
  run.trainer.resume(found);
  EXPECT_EQ(fp8_steps(run), 0);
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  EXPECT_EQ(fp8_steps(run), 4);
}

TEST(Fp8Training, CanBeSwitchedOffWhenARunGoesOn) {
  const auto dir = fresh_folder("runs");
  const auto found = trained_fp8(dir, with_fp8({"train.steps=4"}));
  SmallRun run(dir, without_fp8({"train.steps=8"}));
  run.trainer.resume(found);
  EXPECT_EQ(fp8_steps(run), -1);
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  for (const auto& [name, tensor] : run.tensors()) EXPECT_FALSE(is_fp8(name)) << name;
}

TEST(Fp8Training, AnotherHistoryIsRefused) {
  const auto dir = fresh_folder("runs");
  const auto found = trained_fp8(dir, with_fp8({"train.steps=2"}));
  SmallRun run(dir, with_fp8({"precision.fp8_amax_history=8"}));
  try {
    run.trainer.resume(found);
    FAIL() << "scales of another history were taken over";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::checkpoint);
    EXPECT_NE(std::string(e.what()).find("fp8.history"), std::string::npos) << e.what();
  }
}

// A warm-up that a resume makes longer ends with new scales: the old ones are of other weights.
TEST(Fp8Training, ALongerWarmUpForgetsTheScales) {
  const auto dir = fresh_folder("runs");
  const auto found = trained_fp8(dir, with_fp8({"train.steps=4"}));
  SmallRun run(dir, with_fp8({"train.steps=12", "precision.fp8_warmup_steps=6"}));
  run.trainer.resume(found);
  EXPECT_EQ(fp8_steps(run), 4);
  // What was trained in 8 bits is evaluated so.
  run.task.evaluate([](const tasks::EvalProgress&) {});
  EXPECT_TRUE(run.task.model().fp8()->active());
  run.trainer.run_steps(2);
  EXPECT_EQ(fp8_steps(run), 0);
  const auto warm = run.tensors();
  EXPECT_TRUE((warm.at("fp8.slots").narrow(1, 0, 2) == 1).all().item<bool>());
  EXPECT_TRUE((warm.at("fp8.history") == 0).all().item<bool>());
  run.task.evaluate([](const tasks::EvalProgress&) {});
  EXPECT_FALSE(run.task.model().fp8()->active());
  run.trainer.run_steps(1);
  EXPECT_EQ(fp8_steps(run), 1);
  const auto after = run.tensors();
  // A weight has one maximum of before the step and one of the step; nothing of the first four steps is left.
  EXPECT_TRUE((after.at("fp8.history").narrow(1, 2, 14) == 0).all().item<bool>());
  EXPECT_TRUE((after.at("fp8.slots").select(1, 0) > 1).all().item<bool>());
}

tasks::NamedValues answers(const tasks::PuzzleInference& loaded) {
  const auto test = data::open_dataset(loaded.config.data.test, "test", loaded.config.data);
  const auto options = tasks::puzzle_eval_options(loaded.config, *loaded.model, loaded.runtime, /*training_batch=*/0);
  tasks::PuzzleEvaluation evaluation(*loaded.model, test, loaded.config.objective, options, loaded.runtime.device);
  return evaluation.run([](const tasks::EvalProgress&) {});
}

TEST(Fp8Training, ACheckpointOfTheWarmUpIsEvaluatedWithout) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, with_fp8({"train.steps=4", "precision.fp8_warmup_steps=4"}));
  run.trainer.start_fresh();
  run.trainer.run();
  const tasks::PuzzleInference loaded = tasks::open_puzzle_model(dir / "small", {}, "raw", std::nullopt);
  ASSERT_NE(loaded.model->fp8(), nullptr);
  EXPECT_FALSE(loaded.model->fp8()->active());
  const tasks::NamedValues got = answers(loaded);
  EXPECT_EQ(got, run.task.evaluate([](const tasks::EvalProgress&) {}));
  EXPECT_EQ(got, answers(tasks::open_puzzle_model(dir / "small", {"precision.recursions=same"}, "raw", std::nullopt)));
  ops::start_runtime_and_ops(testing::small_config(dir).config);  // the process's switches as they were
}

// Averages and raw weights are quantised with the scales that training left, during the training and from its
// checkpoint.
TEST(Fp8Training, BothSetsOfWeightsAreEvaluatedWithTheScalesOfTraining) {
  const auto dir = fresh_folder("runs");
  trained_fp8(dir, with_fp8({"optim.ema=0.9", "eval.weights=both", "eval.batch_size=2"}));
  std::map<std::string, nlohmann::json> logged;
  std::ifstream in(dir / "small" / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    for (const char* prefix : {"eval/", "eval_raw/"}) {
      if (line.find(prefix) != std::string::npos) logged[prefix] = nlohmann::json::parse(line);
    }
  }
  ASSERT_EQ(logged.size(), 2u);
  for (const auto& [prefix, line] : logged) {
    const std::string weights = prefix == "eval/" ? "ema" : "raw";
    const tasks::NamedValues got = answers(tasks::open_puzzle_model(dir / "small", {}, weights, std::nullopt));
    for (const std::string key : {"lm_loss", "q_halt_loss", "accuracy"}) {
      EXPECT_EQ(tasks::value_of(got, key), line.at(prefix + key).get<double>()) << weights << " " << key;
    }
  }
  EXPECT_NE(logged["eval/"].at("eval/lm_loss"), logged["eval_raw/"].at("eval_raw/lm_loss"));
  ops::start_runtime_and_ops(testing::small_config(dir).config);
}

TEST(Fp8Training, AnEvaluationQuantisesTheWeightsOnce) {
  SmallRun run(fresh_folder("runs"), with_fp8({"eval.max_samples=12", "eval.batch_size=4"}));
  run.trainer.start_fresh();
  run.trainer.run_steps(2);
  static int64_t calls = 0;
  calls = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
        calls += std::string(fn.name()) == "hrm::quantize_fp8_";
        return nullptr;
      }));
  run.task.evaluate([](const tasks::EvalProgress&) {});
  const int64_t of_three_batches = calls;
  EXPECT_GT(of_three_batches, 0);
  run.trainer.run_steps(1);
  EXPECT_EQ(calls, 2 * of_three_batches) << "more often than a step";
  at::removeCallback(handle);
}

// `eval` and `solve` answer with the scales of the training.
TEST(Fp8Training, AnOpenedModelAnswersAsTheTrainedOne) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, with_fp8());
  run.trainer.start_fresh();
  run.trainer.run();
  const tasks::NamedValues want = run.task.evaluate([](const tasks::EvalProgress&) {});
  const auto answer = [&](const Overrides& overrides) {
    return answers(tasks::open_puzzle_model(dir / "small", overrides, "raw", std::nullopt));
  };
  EXPECT_EQ(answer({}), want);
  // Where fp8 is not possible the model answers all the same, nearly so.
  const tasks::NamedValues plain = answer({"ops.backend=fused"});
  EXPECT_NE(plain, want);
  EXPECT_NEAR(tasks::value_of(plain, "lm_loss"), tasks::value_of(want, "lm_loss"), 0.02);
  // Without scales in the checkpoint: an imported model, or one that was trained without.
  trained_fp8(dir / "plain", without_fp8({"train.steps=2"}));
  const tasks::PuzzleInference loaded =
      tasks::open_puzzle_model(dir / "plain" / "small", {"precision.recursions=fp8"}, "raw", std::nullopt);
  ASSERT_NE(loaded.model->fp8(), nullptr);
  EXPECT_TRUE(loaded.model->fp8()->active());
  ops::start_runtime_and_ops(testing::small_config(dir).config);  // the process's switches as they were
}

}  // namespace
}  // namespace hrm
