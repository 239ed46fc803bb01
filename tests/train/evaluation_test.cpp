// Evaluation: every batch size and early halting give what act_evaluate gives.
#include "evaluation_cases.h"
#include "hrm/ops/start.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;

TEST(Evaluation, BucketsHoldWhatIsLeftAndAreFew) {
  std::set<int64_t> buckets;
  for (int64_t left = 1; left <= 2048; ++left) {
    const int64_t bucket = tasks::evaluation_bucket(left);
    EXPECT_GE(bucket, left);
    EXPECT_TRUE(left <= 32 || bucket * 2 <= left * 3) << left << " in " << bucket;
    buckets.insert(bucket);
  }
  EXPECT_LE(buckets.size(), 13u);
  EXPECT_EQ(tasks::evaluation_bucket(32), 32);
  EXPECT_EQ(tasks::evaluation_bucket(33), 48);
  EXPECT_EQ(tasks::evaluation_bucket(49), 64);
}

TEST(Evaluation, AllSegmentsForAll) {
  testing::check_answers(at::kCPU, /*early_halt=*/false, {});
  testing::check_answers(at::kCPU, /*early_halt=*/false, {"model.start_std=1", "model.path_noise=0.1"});
}

TEST(Evaluation, EarlyHaltStopsEachRowByTheModelsRule) {
  testing::check_answers(at::kCPU, /*early_halt=*/true, {});
  testing::check_answers(at::kCPU, /*early_halt=*/true, {"model.start_std=1", "model.path_noise=0.1"});
  testing::check_answers(
      at::kCPU, /*early_halt=*/true,
      {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=4"});
  testing::check_answers(at::kCPU, /*early_halt=*/true,
                         {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true"});
}

// A third of the cycles, two thirds, all; also where epochs give the length. An evaluation runs all of them.
TEST(DepthCurriculum, FollowsTheLengthOfTheRun) {
  for (const std::vector<std::string>& length :
       {std::vector<std::string>{"train.steps=10"}, {"train.steps=0", "train.epochs=0.4"}}) {
    std::vector<std::string> overrides{"model.depth_curriculum=true", "model.H_cycles=3", "model.L_cycles=4",
                                       "eval.max_samples=4"};
    overrides.insert(overrides.end(), length.begin(), length.end());
    testing::SmallRun run(testing::fresh_folder("runs"), overrides);
    ASSERT_EQ(tasks::planned_steps(run.loaded.config.train, run.task), 10);
    run.trainer.start_fresh();
    const models::PuzzleModel& model = run.task.model();
    std::vector<std::pair<int64_t, int64_t>> depths;
    for (int step = 0; step < 10; ++step) {
      run.trainer.run_steps(1);
      depths.emplace_back(model.H_cycles(), model.L_cycles());
    }
    const std::pair<int64_t, int64_t> first{1, 2}, second{2, 3}, last{3, 4};
    EXPECT_EQ(depths, (std::vector{first, first, first, second, second, second, last, last, last, last})) << length[0];
    testing::SmallRun half(testing::fresh_folder("half"), overrides);
    half.trainer.start_fresh();
    half.trainer.run_steps(1);
    half.task.evaluate([](const tasks::EvalProgress&) {});
    EXPECT_EQ(half.task.model().H_cycles(), 3);
  }
}

TEST(Evaluation, IsKeptWhileTheTrainingGoesOn) {
  for (const char* early : {"eval.early_halt=false", "eval.early_halt=true"}) {
    testing::check_kept_evaluation({early, "eval.max_samples=50", "eval.batch_size=20"});
  }
  // The recursions enter fp8 between the first and the second evaluation.
  testing::check_kept_evaluation({"ops.backend=reference", "model.H_cycles=2", "precision.recursions=fp8",
                                  "precision.fp8_warmup_steps=5", "eval.max_samples=50", "eval.batch_size=20"});
  ops::start_runtime_and_ops(testing::small_config(fresh_folder("runs")).config);  // the process's switches again
}

tasks::NamedValues evaluate(SmallRun& run) {
  return run.task.evaluate([](const tasks::EvalProgress&) {});
}

TEST(Evaluation, TheBatchSizeDoesNotMatter) {
  // Random states belong to the puzzle, wherever it stands.
  for (const auto& [early, start] : {std::pair{"eval.early_halt=false", "model.start_std=0"},
                                     {"eval.early_halt=true", "model.start_std=0"},
                                     {"eval.early_halt=false", "model.start_std=1"},
                                     {"eval.early_halt=true", "model.start_std=1"}}) {
    tasks::NamedValues first;
    for (const char* batch : {"eval.batch_size=50", "eval.batch_size=7", "eval.batch_size=0", "eval.batch_size=500"}) {
      SmallRun run(fresh_folder("runs"), {"eval.max_samples=50", "model.halt_max_steps=5", early, batch, start});
      testing::make_q_values_differ(run);
      const tasks::NamedValues got = evaluate(run);
      if (first.empty()) first = got;
      ASSERT_EQ(got.size(), first.size());
      EXPECT_EQ(tasks::value_of(got, "count"), 50);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].first, first[i].first);
        EXPECT_NEAR(got[i].second, first[i].second, 1e-4) << got[i].first << " " << batch << " " << early;
      }
    }
  }
}

TEST(Evaluation, EarlyHaltReportsTheMeanNumberOfSegments) {
  SmallRun run(fresh_folder("runs"), {"eval.max_samples=60", "model.halt_max_steps=7", "eval.early_halt=true"});
  testing::make_q_values_differ(run);
  const double mean = tasks::value_of(evaluate(run), "steps");
  EXPECT_GT(mean, 1);
  EXPECT_LT(mean, 7);
  SmallRun all(fresh_folder("all"), {"eval.max_samples=20", "model.halt_max_steps=7"});
  testing::make_q_values_differ(all);
  EXPECT_EQ(tasks::value_of(evaluate(all), "steps"), 7);
}

}  // namespace
}  // namespace hrm
