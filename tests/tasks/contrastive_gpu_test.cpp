// Training a geometric memory on a GPU: captured steps are the eager ones, wait for nothing and keep their memory.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/models/geometric_memory.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/profiler.h"
#include "support/overrides.h"
#include "train/small_contrastive.h"

namespace hrm::tasks {
namespace {

using test::with;
using testing::expect_same_tensors;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::ring_and_field;
using testing::SmallContrastive;

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

test::Overrides gpu_settings(const test::Overrides& more, bool graphs) {
  return with({"runtime.device=cuda", graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"}, more);
}

struct ContrastiveGpuVariant {
  std::string name;
  test::Overrides overrides;
};
class ContrastiveGpu : public ::testing::TestWithParam<ContrastiveGpuVariant> {};

TEST_P(ContrastiveGpu, GraphEqualsEagerBitForBitAlsoAfterAResume) {
  HRM_NEEDS_GPU();
  const test::Overrides settings =
      with(GetParam().overrides,
           {"train.steps=24", "train.log_every=4", "train.checkpoint_every=8", "runtime.deterministic=true"});
  const auto dir = fresh_folder("runs");
  SmallContrastive eager(dir / "eager", gpu_settings(settings, false));
  eager.trainer.start_fresh();
  eager.trainer.run();
  EXPECT_EQ(eager.trainer.captured_step().replays(), 0);
  const auto want = eager.tensors();
  {
    SCOPED_TRACE("graph");
    SmallContrastive graph(dir / "graph", gpu_settings(settings, true));
    graph.trainer.start_fresh();
    graph.trainer.run();
    EXPECT_EQ(graph.trainer.captured_step().replays(), 21) << graph.trainer.captured_step().reason();
    EXPECT_EQ(graph_pool_bytes_in_use(), 0) << "the task holds temporaries of the step";
    expect_same_tensors(graph.tensors(), want);
    EXPECT_EQ(metrics_without_timing(dir / "graph"), metrics_without_timing(dir / "eager"));
  }
  SCOPED_TRACE("resumed");
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "graph" / "small").front());
  SmallContrastive resumed(dir / "graph", gpu_settings(settings, true));
  const auto found = checkpoint::find_latest_valid(dir / "graph" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 16);
  resumed.trainer.resume(found->dir, found->meta.info);
  resumed.trainer.run();
  EXPECT_EQ(resumed.trainer.captured_step().replays(), 5) << resumed.trainer.captured_step().reason();
  expect_same_tensors(resumed.tensors(), want);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ContrastiveGpu,
    ::testing::Values(ContrastiveGpuVariant{"plain", {}}, ContrastiveGpuVariant{"ring_and_field", ring_and_field()},
                      ContrastiveGpuVariant{"dissipative",
                                            {"contrastive.dynamics_mode=dissipative", "contrastive.rule=one_sided"}},
                      ContrastiveGpuVariant{"hidden",
                                            {"contrastive.hidden=12", "contrastive.momentum=0.6",
                                             "contrastive.lowrank_r=2", "train.micro_batch_size=16"}},
                      ContrastiveGpuVariant{"spsa", {"contrastive.rule=spsa", "contrastive.spsa_directions=2"}}),
    [](const auto& info) { return info.param.name; });

// The first steps: what differs is the order of sums, and the values' float16.
TEST(ContrastiveGpu, LosesWhatTheCpuLoses) {
  HRM_NEEDS_GPU();
  const auto loss = [&](const char* device) {
    const auto dir = fresh_folder(device);
    SmallContrastive run(dir, with(ring_and_field(), {"runtime.device=" + std::string(device), "train.steps=4",
                                                      "contrastive.bank_dtype=float32"}));
    run.trainer.start_fresh();
    run.trainer.run();
    std::ifstream in(dir / "small" / "metrics.jsonl");
    std::string line;
    std::getline(in, line);
    const std::string key = "\"train/loss\":";
    const size_t at = line.find(key);
    EXPECT_NE(at, std::string::npos) << line;
    return std::stod(line.substr(at + key.size()));
  };
  const double cpu = loss("cpu"), gpu = loss("cuda");
  EXPECT_NEAR(cpu, gpu, 2e-4 * cpu);
}

// Of 100 replayed steps. The only copies to the host are those of the metrics, one a step, and of the phases, one a
// line of metrics. All go to page-locked memory.
TEST(ContrastiveGpu, ReplayedStepsWaitForNothing) {
  HRM_NEEDS_GPU();
  constexpr int64_t kLogEvery = 4;
  const test::Overrides settings = with(ring_and_field(), {"train.log_every=" + std::to_string(kLogEvery)});
  SmallContrastive run(fresh_folder("run"), gpu_settings(settings, true), nullptr, /*files=*/false);
  run.trainer.start_fresh();
  run.trainer.run_steps(6);
  ASSERT_EQ(run.trainer.captured_step().replays(), 3) << run.trainer.captured_step().reason();
  synchronize(run.runtime.device);
  constexpr int64_t kSteps = 100;
  StepTrace trace(run.runtime.device);
  run.trainer.run_steps(kSteps);
  const StepProfile profile = trace.profile();
  EXPECT_EQ(run.trainer.captured_step().replays(), 3 + kSteps);
  ASSERT_TRUE(profile.gpu);
  for (const ProfileRow& wait : profile.waits) ADD_FAILURE() << wait.calls << " calls of " << wait.name;
  int64_t to_host = 0;
  for (const ProfileRow& row : profile.by_name) {
    if (row.name.find("DtoH") == std::string::npos) continue;
    to_host += row.calls;
    EXPECT_EQ(row.name.find("Pageable"), std::string::npos) << row.name << ": such a copy waits";
  }
  EXPECT_LE(to_host, kSteps + kSteps / kLogEvery);
  // The graph, what fills its inputs, and the copy of the metrics.
  EXPECT_LE(profile.launches, 16 * kSteps);
}

// The trace above does see a step that waits.
TEST(ContrastiveGpu, TheTraceSeesAWait) {
  HRM_NEEDS_GPU();
  const at::Tensor value = at::ones({8}, at::device(at::kCUDA));
  synchronize(value.device());
  StepTrace trace(value.device());
  value.sum().item<float>();
  EXPECT_FALSE(trace.profile().waits.empty());
}

// Three steps an epoch.
TEST(ContrastiveGpu, MemoryStaysTheSameOverEpochs) {
  HRM_NEEDS_GPU();
  SmallContrastive run(fresh_folder("run"), gpu_settings(with(ring_and_field(), {"train.global_batch_size=449"}), true),
                       nullptr,
                       /*files=*/false);
  run.trainer.start_fresh();
  const auto report = [&](int64_t epochs) {
    run.trainer.run_steps(3 * epochs);
    synchronize(run.runtime.device);
    return memory_report(run.runtime.device);
  };
  const MemoryReport early = report(2);
  const double resident = testing::resident_bytes();
  const MemoryReport late = report(98);
  EXPECT_GT(run.trainer.captured_step().replays(), 290) << run.trainer.captured_step().reason();
  EXPECT_EQ(late.allocated, early.allocated);
  EXPECT_EQ(late.reserved, early.reserved);
  EXPECT_EQ(late.allocated_peak, early.allocated_peak);
  EXPECT_EQ(late.retries, early.retries);
  EXPECT_NEAR(testing::resident_bytes(), resident, 0.01 * resident);
}

// A window keeps nothing of its steps: backprop keeps all of them.
TEST(ContrastiveGpu, PeakMemoryDoesNotDependOnTheSteps) {
  HRM_NEEDS_GPU();
  const at::Device device(at::kCUDA, 0);
  models::GeometricMemoryOptions options;
  options.features = 64;
  options.classes = 10;
  options.slots = 512;
  const models::GeometricMemory memory(options, /*seed=*/1, device);
  const at::Tensor inputs = at::sin(at::arange(256 * 64, at::device(device).dtype(at::kFloat))).view({256, 64});
  const at::Tensor labels = at::arange(256, at::device(device).dtype(at::kLong)).remainder(10);
  const auto peak = [&](objectives::ContrastiveRule rule, int64_t steps) {
    const at::NoGradGuard no_grad;
    const auto once = [&] {
      objectives::contrastive_gradients(memory, memory.prepare(/*half_values=*/true), inputs, labels,
                                        {.rule = rule, .steps = steps, .nudge_steps = steps});
    };
    once();  // libraries take their workspaces
    synchronize(device);
    c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
    const int64_t before = memory_report(device, /*whole_device=*/false).allocated;
    once();
    return static_cast<double>(memory_report(device, /*whole_device=*/false).allocated_peak - before);
  };
  using objectives::ContrastiveRule;
  for (const ContrastiveRule rule : {ContrastiveRule::symmetric, ContrastiveRule::one_sided}) {
    const double few = peak(rule, 64), many = peak(rule, 1024);
    EXPECT_GT(few, 0);
    EXPECT_NEAR(many, few, 0.01 * few);
  }
  EXPECT_GT(peak(ContrastiveRule::backprop, 64), 10 * peak(ContrastiveRule::symmetric, 64));
}

}  // namespace
}  // namespace hrm::tasks
