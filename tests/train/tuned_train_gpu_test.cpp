// Tuned matrix products must not cost a run its reproducibility: other algorithms sum in another order.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/gemm_tuning.h"
#include "support/overrides.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::fresh_folder;
using testing::SmallRun;

// Products that are large enough to be tuned.
Overrides tuned(const std::filesystem::path& cache, const Overrides& more = {}) {
  Overrides all = {"runtime.device=cuda",
                   "ops.gemm_cache=" + cache.string(),
                   "train.steps=12",
                   "train.checkpoint_every=6",
                   "train.global_batch_size=16",
                   "model.hidden_size=256",
                   "model.num_heads=4",
                   "data.test="};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void expect_state(SmallRun& run, const std::map<std::string, at::Tensor>& expected) {
  const auto got = run.tensors();
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
}

TEST(TunedTrainGpu, TheFileAndTheCheckpointKeepTheBits) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  SmallRun first(dir / "first", tuned(dir / "cache"));
  first.trainer.start_fresh();
  first.trainer.run();
  const auto expected = first.tensors();
  EXPECT_GT(ops::gemm_tuning_report().timed, 3);
  EXPECT_EQ(ops::gemm_tuning_report().untimed, 0) << "a shape was first met while a graph was captured";

  // Another start on this machine, eagerly: the file says all.
  ops::set_gemm_cache(dir / "elsewhere");
  SmallRun again(dir / "again", tuned(dir / "cache", {"runtime.cuda_graphs=false"}));
  again.trainer.start_fresh();
  again.trainer.run();
  EXPECT_EQ(ops::gemm_tuning_report().timed, 0);
  EXPECT_GT(ops::gemm_tuning_report().reused, 3);
  expect_state(again, expected);

  // A resume on another machine of the same kind: the checkpoint says all.
  const auto checkpoints = checkpoint::list_checkpoints(dir / "first" / "small");
  ASSERT_EQ(checkpoints.size(), 2U);
  const auto found = checkpoint::open_checkpoint(checkpoints.back());
  ASSERT_EQ(found.meta.step, 6);
  ASSERT_EQ(found.meta.info.count(ops::kGemmChoices), 1U);
  SmallRun resumed(dir / "resumed", tuned(dir / "other cache"));
  ops::adopt_gemm_choices(found.meta.info.at(ops::kGemmChoices));
  resumed.trainer.resume(found.dir);
  resumed.trainer.run();
  EXPECT_EQ(ops::gemm_tuning_report().timed, 0);
  EXPECT_GT(ops::gemm_tuning_report().reused, 3);
  expect_state(resumed, expected);
}

TEST(TunedTrainGpu, OffAndDeterministicTimeNothing) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  for (const char* off : {"ops.gemm_tuning=off", "runtime.deterministic=true"}) {
    SmallRun run(dir / off, tuned(dir / "cache", {off}));
    run.trainer.start_fresh();
    run.trainer.run_steps(1);
    EXPECT_EQ(ops::gemm_tuning_report().timed, 0) << off;
    EXPECT_FALSE(std::filesystem::exists(dir / "cache")) << off;
  }
}

}  // namespace
}  // namespace hrm
