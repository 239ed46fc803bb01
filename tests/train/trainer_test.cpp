#include <ATen/core/grad_mode.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/start.h"
#include "hrm/train/signals.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;

TEST(PuzzleTask, SaysWhichAttentionRuns) {
  const std::string kernel = "our kernel for short sequences where no gradient is needed";
  SmallRun fused(fresh_folder("fused"));
  EXPECT_NE(fused.task.describe().find(kernel), std::string::npos) << fused.task.describe();
  SmallRun reference(fresh_folder("reference"), {"ops.backend=reference"});
  EXPECT_EQ(reference.task.describe().find(kernel), std::string::npos) << reference.task.describe();
  EXPECT_NE(reference.task.describe().find("scaled dot-product attention, backend"), std::string::npos);
  ops::start_runtime_and_ops(fused.loaded.config);  // the process's switches as they were
}

TEST(Trainer, StopsAtANonFiniteGradientWithTheGoodWeightsInADump) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"train.checkpoint_every=2", "train.max_nonfinite_steps=1"});
  run.trainer.start_fresh();
  {
    const at::NoGradGuard no_grad;
    // One infinite weight of the readout: every logit of a token, so the loss and its gradient, is not finite.
    run.task.model().named_parameters()["lm_head.weight"].fill_(std::numeric_limits<float>::infinity());
  }
  run.task.parameters().refresh_compute();
  const auto before = run.tensors();
  try {
    run.trainer.run();
    FAIL() << "trained on with infinite weights";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::diverged);
    EXPECT_NE(std::string(e.what()).find("step 1 "), std::string::npos) << e.what();
  }
  // The step was skipped on the device: every weight is what it was.
  const auto after = run.tensors();
  for (const auto& item : run.task.model().named_parameters()) {
    EXPECT_TRUE(at::equal(before.at(item.key()), after.at(item.key()))) << item.key();
  }
  const auto dumps = checkpoint::list_checkpoints(dir / "small" / "diverged");
  ASSERT_EQ(dumps.size(), 1u);
  EXPECT_EQ(checkpoint::open_checkpoint(dumps.front()).meta.step, 1);
}

TEST(Trainer, WithoutARunFolderADivergenceWritesNothing) {
  const auto dir = fresh_folder("runs");
  const config::LoadedConfig loaded = testing::small_config(dir, {"train.max_nonfinite_steps=1"});
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  tasks::PuzzleTask task(loaded.config, runtime);
  train::Trainer trainer(loaded.config, loaded.to_json(), runtime, task, /*run_dir=*/"");
  {
    const at::NoGradGuard no_grad;
    task.model().named_parameters()["lm_head.weight"].fill_(std::numeric_limits<float>::infinity());
  }
  trainer.start_fresh();
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir);
  try {
    trainer.run_steps(3);
    ADD_FAILURE() << "trained on with infinite weights";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::diverged);
    EXPECT_EQ(std::string(e.what()).find("dump"), std::string::npos) << e.what();
  }
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::is_empty(dir));
}

TEST(Trainer, WritesMetricsEvaluationAndCheckpoints) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"train.eval_every=4", "train.checkpoint_every=4", "train.keep_checkpoints=1", "optim.ema=0.9",
                     "eval.weights=both"});
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  EXPECT_EQ(checkpoint::list_checkpoints(dir / "small").size(), 1u);
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::string line;
  int train_lines = 0, eval_lines = 0, raw_lines = 0;
  while (std::getline(in, line)) {
    train_lines += line.find("\"train/lm_loss\"") != std::string::npos;
    eval_lines += line.find("\"eval/exact_accuracy\"") != std::string::npos;
    raw_lines += line.find("\"eval_raw/exact_accuracy\"") != std::string::npos;
    if (line.find("\"train/lm_loss\"") == std::string::npos) continue;
    for (const char* key : {"train/grad_norm_raw", "train/grad_norm_clipped", "train/lr", "perf/step_ms",
                            "perf/data_wait_ms", "perf/data_queue_depth_puzzles", "perf/data_wait_ms_puzzles",
                            "perf/data_fill_ms_puzzles", "perf/mfu", "train/exact_accuracy", "train/steps"}) {
      EXPECT_NE(line.find(key), std::string::npos) << key;
    }
  }
  EXPECT_EQ(train_lines, 2);
  EXPECT_EQ(eval_lines, 2);
  EXPECT_EQ(raw_lines, 2);
  EXPECT_FALSE(std::filesystem::is_empty(dir / "small" / "tensorboard"));
}

TEST(Trainer, ClippingBoundsTheUpdateAndIsReported) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"optim.grad_clip=0.01", "train.log_every=1", "train.steps=2"});
  run.trainer.start_fresh();
  run.trainer.run();
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::string line;
  std::getline(in, line);
  const auto number = [&](const std::string& key) {
    return std::stod(line.substr(line.find("\"" + key + "\":") + key.size() + 3));
  };
  EXPECT_GT(number("train/grad_norm_raw"), 0.01);
  EXPECT_NEAR(number("train/grad_norm_clipped"), 0.01, 1e-5);
}

TEST(Trainer, TheTimeLimitSavesAndStops) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"train.steps=100000", "train.max_seconds=0.2"});
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), train::Outcome::stopped);
  ASSERT_EQ(checkpoint::list_checkpoints(dir / "small").size(), 1u);
  EXPECT_EQ(checkpoint::open_checkpoint(dir / "small").meta.step, run.trainer.step());
}

// A scheduler that stops the run in the middle of an evaluation.
class TaskStoppedInEvaluation : public tasks::PuzzleTask {
 public:
  using PuzzleTask::PuzzleTask;
  tasks::NamedValues evaluate(const std::function<void(const tasks::EvalProgress&)>& progress) override {
    return PuzzleTask::evaluate([&](const tasks::EvalProgress& so_far) {
      if (so_far.done < so_far.total) raise(SIGTERM);
      progress(so_far);
    });
  }
};

[[noreturn]] void exit_with_outcome_of_run(const std::filesystem::path& dir, const std::vector<std::string>& more) {
  const config::LoadedConfig loaded = testing::small_config(dir, more);
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  TaskStoppedInEvaluation task(loaded.config, runtime);
  train::Trainer trainer(loaded.config, loaded.to_json(), runtime, task, dir / "small");
  train::install_signal_handlers();
  trainer.start_fresh();
  const bool stopped = trainer.run() == train::Outcome::stopped;
  std::_Exit(stopped && !trainer.finished() ? 0 : 1);
}

int lines_with(const std::filesystem::path& file, const std::string& text) {
  std::ifstream in(file);
  int count = 0;
  for (std::string line; std::getline(in, line);) count += line.find(text) != std::string::npos;
  return count;
}

// `step`: the one whose evaluation is stopped.
void check_stop_in_evaluation(const std::string& every, int64_t step) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the signal's flag belongs to a process
  const auto dir = fresh_folder("runs");
  const std::vector<std::string> more = {every, "eval.batch_size=2", "optim.ema=0.9", "eval.weights=both"};
  EXPECT_EXIT(exit_with_outcome_of_run(dir / "stopped", more), ::testing::ExitedWithCode(0),
              "start it again to resume");
  const auto metrics = dir / "stopped" / "small" / "metrics.jsonl";
  EXPECT_EQ(lines_with(metrics, "\"eval"), 0);
  const auto newest = [&] { return checkpoint::open_checkpoint(dir / "stopped" / "small").dir; };
  SmallRun resumed(dir / "stopped", more);
  resumed.trainer.resume(newest());
  EXPECT_EQ(resumed.trainer.step(), step);
  EXPECT_FALSE(resumed.trainer.finished());
  EXPECT_EQ(resumed.trainer.run(), train::Outcome::finished);

  SmallRun straight(dir / "straight", more);
  straight.trainer.start_fresh();
  straight.trainer.run();
  EXPECT_TRUE(straight.trainer.finished());
  const auto want = straight.tensors(), got = resumed.tensors();
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  for (const char* key : {"\"eval/exact_accuracy\"", "\"eval_raw/exact_accuracy\""}) {
    EXPECT_EQ(lines_with(metrics, key), lines_with(dir / "straight" / "small" / "metrics.jsonl", key));
  }
  // And it is not made again.
  SmallRun done(dir / "stopped", more);
  done.trainer.resume(newest());
  EXPECT_TRUE(done.trainer.finished());
}

TEST(Trainer, ASignalStopsAnEvaluationWhichIsMadeUpFor) {
  check_stop_in_evaluation("train.eval_every=4", 4);
}

TEST(Trainer, ASignalStopsTheLastEvaluationWhichIsMadeUpFor) {
  check_stop_in_evaluation("train.eval_every=0", 8);
}

// fp16: an overflow of the scaled loss leaves out its step and halves the scale, and the training goes on.
TEST(Trainer, AnOverflowOfTheScaledLossIsNoDivergence) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"precision.compute=fp16", "precision.loss_scale=16777216", "train.log_every=1", "train.steps=30",
                     "train.global_batch_size=1"});
  run.trainer.start_fresh();
  const auto before = run.tensors();
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  const auto after = run.tensors();
  EXPECT_LT(after.at("loss_scale.scale").item<double>(), 16777216);
  const double skipped = after.at("loss_scale.skipped").item<double>();
  EXPECT_GE(skipped, 1);
  EXPECT_LT(skipped, 20);
  EXPECT_EQ(after.at("optim.step").item<double>(), 30 - skipped);
  EXPECT_FALSE(at::equal(before.at("lm_head.weight"), after.at("lm_head.weight")));
  EXPECT_TRUE(after.at("lm_head.weight").isfinite().all().item<bool>());
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::string line;
  std::getline(in, line);
  EXPECT_NE(line.find("\"train/loss_scale\":16777216"), std::string::npos) << line;
  EXPECT_NE(line.find("\"train/skipped_steps\":1"), std::string::npos) << line;
  EXPECT_NE(line.find("\"train/grad_norm_raw\":0"), std::string::npos) << line;
}

TEST(Trainer, Fp16WithInfiniteWeightsDivergesAtLast) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"precision.compute=fp16", "train.steps=100"});
  run.trainer.start_fresh();
  {
    const at::NoGradGuard no_grad;
    run.task.model().named_parameters()["lm_head.weight"].fill_(std::numeric_limits<float>::infinity());
  }
  run.task.parameters().refresh_compute();
  try {
    run.trainer.run();
    FAIL() << "trained on with infinite weights";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::diverged);
  }
}

// data.reference_semantics = false: slots take the rows of the stream one after the other as they halt.
TEST(RowPool, NoRowIsLost) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir, {"data.reference_semantics=false", "data.augmentation=none", "train.steps=20"});
  const auto options = data::train_stream_options(run.loaded.config, 8, /*pinned=*/false);
  const std::shared_ptr<const data::PuzzleDataset> dataset = data::open_dataset(
      run.loaded.config.data.train, "train", run.loaded.config.data, static_cast<uint64_t>(run.loaded.config.run.seed));
  data::RowStream rows(dataset, options, 0);

  at::Tensor sums = at::zeros({static_cast<int64_t>(run.task.metric_names().size())}, at::kDouble);
  const at::Tensor no_skip = at::zeros({});
  int64_t taken = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    const at::Tensor halted = run.tensors().at("carry.halted");
    run.task.load_batch(step, 1.0);
    run.task.parameters().zero_grad();
    run.task.forward_backward(0, /*loss_scale=*/{}, sums);
    run.task.update_extra(no_skip);
    run.task.finish_step();
    const auto after = run.tensors();
    for (int64_t slot = 0; slot < 8; ++slot) {
      if (!halted[slot].item<bool>()) continue;
      const data::StreamBatch expected = rows.next_rows(1);
      EXPECT_TRUE(at::equal(after.at("carry.inputs")[slot], expected.batch.inputs[0])) << "step " << step;
      ++taken;
    }
  }
  EXPECT_GT(taken, 40);
  for (const auto& [name, value] : list_state(run.trainer).integers) {
    if (name == "sampler.position") {
      EXPECT_EQ(value, taken);
    }
  }
}

}  // namespace
}  // namespace hrm
