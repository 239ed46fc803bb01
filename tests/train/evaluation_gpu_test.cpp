#include <c10/cuda/CUDAFunctions.h>

#include "evaluation_cases.h"
#include "hrm/runtime/profiler.h"
#include "hrm/tasks/rollouts.h"

namespace hrm {
namespace {

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

TEST(EvaluationGpu, AllSegmentsForAll) {
  HRM_NEEDS_GPU();
  testing::check_answers(at::kCUDA, /*early_halt=*/false, {});
}

TEST(EvaluationGpu, EarlyHaltStopsEachRowByTheModelsRule) {
  HRM_NEEDS_GPU();
  testing::check_answers(at::kCUDA, /*early_halt=*/true, {});
  testing::check_answers(at::kCUDA, /*early_halt=*/true, {"model.start_std=1", "model.path_noise=0.1"});
  testing::check_answers(
      at::kCUDA, /*early_halt=*/true,
      {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=4"});
  testing::check_answers(at::kCUDA, /*early_halt=*/true,
                         {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true"});
}

// In bf16, too, a graph and eager runs give the same bits.
TEST(EvaluationGpu, GraphEqualsEager) {
  HRM_NEEDS_GPU();
  const std::string cache = "ops.gemm_cache=" + testing::fresh_folder("cache").string();
  // With rollouts the last part of a batch, and the last batch, are smaller.
  for (const std::vector<std::string>& form :
       {std::vector<std::string>{"eval.early_halt=false"},
        {"eval.early_halt=true"},
        {"eval.rollouts=7", "eval.max_samples=300", "eval.batch_size=333"},
        {"eval.rollouts=7", "eval.max_samples=300", "eval.batch_size=333", "eval.early_halt=true", "eval.noise=0.02"},
        {"eval.rollouts=7", "eval.max_samples=300", "eval.batch_size=333", "eval.noisy_state=z_H", "model.start_std=1",
         "model.path_noise=0.1", "model.damping=0.1"},
        {"eval.rollouts=7", "eval.max_samples=300", "eval.batch_size=333", "eval.noisy_state=z_H", "model.arch=urm",
         "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true"}}) {
    tasks::NamedValues first;
    for (const char* graphs : {"runtime.cuda_graphs=false", "runtime.cuda_graphs=true"}) {
      std::vector<std::string> overrides{"runtime.device=cuda",
                                         "eval.max_samples=2000",
                                         "eval.batch_size=500",
                                         "model.halt_max_steps=16",
                                         "model.hidden_size=128",
                                         cache,
                                         graphs};
      overrides.insert(overrides.end(), form.begin(), form.end());
      testing::SmallRun run(testing::fresh_folder("runs"), overrides);
      testing::make_q_values_differ(run);
      const tasks::NamedValues got = run.task.evaluate([](const tasks::EvalProgress&) {});
      if (first.empty()) first = got;
      ASSERT_EQ(got.size(), first.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], first[i]) << form[0] << " " << graphs;
    }
  }
}

// Its graph shares a memory pool with that of the training step.
TEST(EvaluationGpu, IsKeptWhileTheTrainingGoesOn) {
  HRM_NEEDS_GPU();
  for (const std::vector<std::string>& recursions :
       {std::vector<std::string>{}, {"precision.recursions=fp8", "precision.fp8_warmup_steps=5"}}) {
    std::vector<std::string> more{"runtime.device=cuda",        "model.hidden_size=128", "model.H_cycles=2",
                                  "runtime.deterministic=true", "eval.max_samples=500",  "eval.batch_size=200"};
    more.insert(more.end(), recursions.begin(), recursions.end());
    testing::check_kept_evaluation(more);
  }
}

// A captured evaluation of a batch that is on the device already: pageable memory would be copied with a wait.
class CapturedEvaluationGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    HRM_NEEDS_GPU();
    run_ = std::make_unique<testing::SmallRun>(testing::fresh_folder("runs"),
                                               std::vector<std::string>{"runtime.device=cuda", "ops.gemm_tuning=off"});
    const data::PuzzleBatch batch = testing::some_puzzles(*run_, 64);
    batch_ = {batch.inputs.cuda(), batch.labels.cuda(), batch.puzzle_identifiers.cuda(), batch.valid_rows};
    evaluator_ = std::make_unique<tasks::PuzzleEvaluator>(
        run_->task.model(),
        tasks::PuzzleEvaluatorOptions{64, /*segments=*/16, /*early_halt=*/false, /*cuda_graphs=*/true});
    evaluator_->run(batch_);
  }
  std::unique_ptr<testing::SmallRun> run_;
  std::unique_ptr<tasks::PuzzleEvaluator> evaluator_;
  data::PuzzleBatch batch_;
};

// Whatever LibTorch knows to wait is an error.
TEST_F(CapturedEvaluationGpu, TheHostWaitsForNothingBetweenSegments) {
  auto& state = c10::cuda::warning_state();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(evaluator_->run(batch_));
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

// Rollouts, too; their numbers reach the device from pinned memory.
TEST_F(CapturedEvaluationGpu, TheHostWaitsForNothingBetweenRollouts) {
  tasks::RolloutEvaluator rollouts(run_->task.model(), {.rows = 96, .rollouts = 4, .segments = 16, .noise = 0.2});
  const std::vector<int64_t> numbers(64, 1);
  rollouts.run(batch_, numbers);
  auto& state = c10::cuda::warning_state();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(rollouts.run(batch_, numbers));
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

// And of all calls of the CUDA runtime, whoever makes them, none waits.
TEST_F(CapturedEvaluationGpu, NoCallOfTheRuntimeWaits) {
  StepTrace trace(run_->runtime.device);
  evaluator_->run(batch_);
  const StepProfile profile = trace.profile();
  EXPECT_TRUE(profile.gpu);
  EXPECT_GE(profile.launches, 16);
  for (const ProfileRow& row : profile.waits) ADD_FAILURE() << row.calls << " calls of " << row.name;
}

}  // namespace
}  // namespace hrm
