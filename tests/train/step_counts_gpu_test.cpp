// As step_counts_test.cpp on a GPU, with launches and host waits, eager and replayed.

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <functional>

#include "hrm/runtime/profiler.h"
#include "train/small_contrastive.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"
#include "train/small_run.h"
#include "train/step_counts.h"

namespace hrm {
namespace {

using testing::fresh_folder;

// The small configurations without what a tuner's clock decides.
std::vector<std::string> on_gpu(bool graphs) {
  return {"runtime.device=cuda", "ops.gemm_tuning=off",
          graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"};
}

// Of four steps, behind eight that warm up and capture: first the counters, then the profiler.
testing::Counts counts_on_gpu(train::Trainer& trainer, at::Device device) {
  trainer.start_fresh();
  trainer.run_steps(8);
  trainer.wait_for_metrics();
  testing::Counts counts;
  {
    const WorkCounter counter(device);
    trainer.run_steps(4);
    trainer.wait_for_metrics();  // otherwise it depends on the GPU's speed how many steps' metrics are read
    counts = testing::counts_json(counter.counts());
  }
  StepTrace trace(device);
  trainer.run_steps(4);
  const StepProfile profile = trace.profile();
  int64_t waits = 0;
  for (const ProfileRow& row : profile.waits) waits += row.calls;
  counts["launches"] = profile.launches;
  counts["host_waits"] = waits;
  return counts;
}

template <class Run>
void expect_gpu_counts(const std::string& work, const std::vector<std::string>& more = {}) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  if (properties.major != 9) GTEST_SKIP() << "recorded for GPUs of compute capability 9.0";
  const bool renews = std::getenv("HRM_RENEW_COUNTS") != nullptr;
  for (const bool graphs : {false, true}) {
    const std::string name = work + (graphs ? " on a GPU of 9.0, captured" : " on a GPU of 9.0, eager");
    if (!renews && !testing::is_recorded(name)) GTEST_SKIP() << "no counts are recorded for " << name;
    std::vector<std::string> settings = on_gpu(graphs);
    settings.insert(settings.end(), more.begin(), more.end());
    Run run(fresh_folder(graphs ? "graphs" : "eager"), settings);
    // What is freed before depends on other tests, and so do the sizes of blocks.
    testing::expect_recorded(name, counts_on_gpu(run.trainer, run.runtime.device), "build/tests/test_train_gpu",
                             /*tolerance=*/0.05);
  }
}

TEST(StepCountsGpu, Puzzle) {
  expect_gpu_counts<testing::SmallRun>("a puzzle model");
}

TEST(StepCountsGpu, Language) {
  expect_gpu_counts<testing::SmallLanguage>("a language model");
}

TEST(StepCountsGpu, Polychromic) {
  expect_gpu_counts<testing::SmallPolychromic>("a causal model with completions");
}

TEST(StepCountsGpu, Contrastive) {
  expect_gpu_counts<testing::SmallContrastive>("a contrastive model", testing::ring_and_field());
}

}  // namespace
}  // namespace hrm
