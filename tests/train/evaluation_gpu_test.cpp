#include <c10/cuda/CUDAFunctions.h>

#include "evaluation_cases.h"
#include "hrm/runtime/profiler.h"

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
  testing::check_answers(
      at::kCUDA, /*early_halt=*/true,
      {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=4"});
}

// In bf16, too, a graph and eager runs give the same bits.
TEST(EvaluationGpu, GraphEqualsEager) {
  HRM_NEEDS_GPU();
  const std::string cache = "ops.gemm_cache=" + testing::fresh_folder("cache").string();
  for (const char* early : {"eval.early_halt=false", "eval.early_halt=true"}) {
    tasks::NamedValues first;
    for (const char* graphs : {"runtime.cuda_graphs=false", "runtime.cuda_graphs=true"}) {
      testing::SmallRun run(testing::fresh_folder("runs"),
                            {"runtime.device=cuda", "eval.max_samples=2000", "eval.batch_size=500",
                             "model.halt_max_steps=16", "model.hidden_size=128", cache, early, graphs});
      testing::make_q_values_differ(run);
      const tasks::NamedValues got = run.task.evaluate([](const tasks::EvalProgress&) {});
      if (first.empty()) first = got;
      ASSERT_EQ(got.size(), first.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], first[i]) << early << " " << graphs;
    }
  }
}

// Its graph shares a memory pool with that of the training step.
TEST(EvaluationGpu, IsKeptWhileTheTrainingGoesOn) {
  HRM_NEEDS_GPU();
  for (const char* recursions : {"precision.recursions=same", "precision.recursions=fp8"}) {
    testing::check_kept_evaluation({"runtime.device=cuda", "model.hidden_size=128", "model.H_cycles=2", recursions,
                                    "precision.fp8_warmup_steps=5", "runtime.deterministic=true",
                                    "eval.max_samples=500", "eval.batch_size=200"});
  }
}

TEST(EvaluationGpu, TheHostWaitsForNothingBetweenSegments) {
  HRM_NEEDS_GPU();
  testing::SmallRun run(testing::fresh_folder("runs"), {"runtime.device=cuda", "ops.gemm_tuning=off"});
  const data::PuzzleBatch batch = testing::some_puzzles(run, 64);
  tasks::PuzzleEvaluator evaluator(run.task.model(), {64, 16, /*early_halt=*/false, /*cuda_graphs=*/true});
  evaluator.run(batch);
  auto& state = c10::cuda::warning_state();
  // Pageable memory would be copied with a wait, so the batch is on the device already.
  const data::PuzzleBatch on_device{batch.inputs.cuda(), batch.labels.cuda(), batch.puzzle_identifiers.cuda(),
                                    batch.valid_rows};
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(evaluator.run(on_device));
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  StepTrace trace(run.runtime.device);
  evaluator.run(on_device);
  const StepProfile profile = trace.profile();
  EXPECT_TRUE(profile.gpu);
  EXPECT_GE(profile.launches, 16);
  for (const ProfileRow& row : profile.waits) ADD_FAILURE() << row.calls << " calls of " << row.name;
}

}  // namespace
}  // namespace hrm
