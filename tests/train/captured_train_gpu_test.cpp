// Training with the step captured in a CUDA graph is training.
#include <c10/cuda/CUDAFunctions.h>

#include <limits>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/stale_gradient.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/profiler.h"
#include "support/overrides.h"
#include "train/small_language.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallRun;

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

Overrides captured_on_gpu(const Overrides& more, bool graphs) {
  Overrides all = {"runtime.device=cuda",  "runtime.deterministic=true", "train.steps=60",
                   "train.log_every=10",   "train.eval_every=20",        "train.checkpoint_every=20",
                   "model.hidden_size=64", "eval.max_samples=32",        "eval.batch_size=32"};
  all.push_back(graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false");
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void expect_identical_state(const std::map<std::string, at::Tensor>& want,
                            const std::map<std::string, at::Tensor>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, tensor] : want) {
    if (at::equal(tensor, got.at(name))) continue;
    const at::Tensor a = tensor.to(at::kDouble), b = got.at(name).to(at::kDouble);
    ADD_FAILURE() << name << ": " << a.ne(b).sum().item<int64_t>() << " of " << a.numel()
                  << " values differ, the largest by " << (a - b).abs().max().item<double>() << " of "
                  << a.abs().max().item<double>();
  }
}

struct CapturedVariant {
  std::string name;
  Overrides overrides;
};

void PrintTo(const CapturedVariant& variant, std::ostream* out) {
  *out << variant.name;
}

class CapturedTrainGpu : public ::testing::TestWithParam<CapturedVariant> {};

// With evaluations and checkpoints between the steps.
TEST_P(CapturedTrainGpu, GraphEqualsEagerBitForBitAlsoAfterAResume) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  SmallRun eager(dir / "eager", captured_on_gpu(GetParam().overrides, false));
  eager.trainer.start_fresh();
  eager.trainer.run();
  EXPECT_EQ(eager.trainer.captured_step().replays(), 0);
  const auto want = eager.tensors();
  const std::string want_metrics = metrics_without_timing(dir / "eager");
  {
    SCOPED_TRACE("graph");
    SmallRun graph(dir / "graph", captured_on_gpu(GetParam().overrides, true));
    graph.trainer.start_fresh();
    graph.trainer.run();
    EXPECT_EQ(graph.trainer.captured_step().replays(), 57) << graph.trainer.captured_step().reason();
    expect_identical_state(want, graph.tensors());
    EXPECT_EQ(metrics_without_timing(dir / "graph"), want_metrics);
    EXPECT_EQ(graph_pool_bytes_in_use(), 0) << "the graph keeps results among its temporaries";
  }
  // As if the process had died after step 40.
  SCOPED_TRACE("resumed");
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "graph" / "small").front());
  SmallRun resumed(dir / "graph", captured_on_gpu(GetParam().overrides, true));
  const auto found = checkpoint::find_latest_valid(dir / "graph" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 40);
  resumed.trainer.resume(found->dir);
  resumed.trainer.run();
  EXPECT_EQ(resumed.trainer.captured_step().replays(), 17) << resumed.trainer.captured_step().reason();
  expect_identical_state(want, resumed.tensors());
  EXPECT_EQ(metrics_without_timing(dir / "graph"), want_metrics);
}

// Gradients of language models that the first product of a pass overwrites, on a GPU in another product than the one
// that adds. Their steps are those with cleared gradients up to rounding, and a graph's are those of eager ones.
TEST(OverwrittenGradientsGpu, GraphEqualsEagerAndClearedOnes) {
  HRM_NEEDS_GPU();
  const int64_t before = ops::overwritten_elements();
  for (const char* const micro : {"train.micro_batch_size=8", "train.micro_batch_size=4"}) {
    std::vector<std::map<std::string, at::Tensor>> states;
    for (const int64_t elements : {before, int64_t{1}}) {
      for (const bool graphs : {false, true}) {
        ops::set_overwritten_elements(elements);
        testing::SmallLanguage run(
            fresh_folder("overwritten"),
            {"runtime.device=cuda", "runtime.deterministic=true", "lm.arch=decoder", "data.encoder_len=0",
             "data.train={text}", "lm.tied=false", "lm.hidden_size=128", "data.decoder_len=64", "optim.eps=0.1",
             "train.steps=20", "train.eval_every=0", "train.checkpoint_every=0", micro,
             graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"});
        run.trainer.start_fresh();
        run.trainer.run();
        EXPECT_EQ(run.trainer.captured_step().replays() > 0, graphs) << run.trainer.captured_step().reason();
        states.push_back(run.tensors());
      }
    }
    ops::set_overwritten_elements(before);
    expect_identical_state(states[2], states[3]);
    for (const auto& [name, tensor] : states[0]) {
      if (!tensor.is_floating_point() || name.starts_with("optim.")) continue;
      const at::Tensor other = states[2].at(name);
      EXPECT_LE((other - tensor).norm().item<double>(), 1e-2 * tensor.norm().item<double>()) << name << ", " << micro;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, CapturedTrainGpu,
    ::testing::Values(
        CapturedVariant{"hrm", {}},
        CapturedVariant{
            "width_of_the_recipes",
            {"model.hidden_size=512", "model.num_heads=8", "model.H_cycles=2", "train.checkpoint_every=40"}},
        CapturedVariant{"accumulation", {"train.micro_batch_size=2"}},
        CapturedVariant{"adamw_ema_clip",
                        {"optim.name=adamw", "optim.ema=0.9", "optim.grad_clip=0.5", "eval.weights=both"}},
        CapturedVariant{"lion_groups", {"optim.name=lion", "optim.lr=1e-4", "optim.groups=*embed*=0,*_head*=0.2:0.5"}},
        CapturedVariant{"muon", {"optim.name=muon", "optim.lr=0.02", "optim.ema=0.9", "optim.grad_clip=0.5"}},
        CapturedVariant{"muon_fp32", {"optim.name=muon", "optim.lr=0.02", "optim.muon_precision=fp32"}},
        CapturedVariant{"rows_not_lost_accumulation", {"data.reference_semantics=false", "train.micro_batch_size=4"}},
        CapturedVariant{"trm_attention",
                        {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=4",
                         "optim.ema=0.99", "eval.early_halt=true"}},
        CapturedVariant{"trm_mlp",
                        {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.mlp_t=true",
                         "model.pos_encodings=none"}},
        CapturedVariant{"settling",
                        {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true",
                         "model.start_std=1", "model.damping=0.05", "model.path_noise=0.1", "model.mlp_t=true",
                         "model.pos_encodings=none", "model.puzzle_emb_ndim=0"}},
        CapturedVariant{
            "urm",
            {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true", "optim.ema=0.9"}},
        CapturedVariant{"all_cycles_with_losses",
                        {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.gradient_cycles=2",
                         "model.loss_every_cycle=true", "model.no_ACT_continue=true"}},
        CapturedVariant{"recompute",
                        {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.gradient_cycles=2",
                         "model.recompute=true", "model.start_std=1", "model.damping=0.05", "model.path_noise=0.1",
                         "train.micro_batch_size=4"}},
        CapturedVariant{"recompute_hrm", {"model.recompute=true", "model.H_cycles=2"}},
        CapturedVariant{"fp16",
                        {"precision.compute=fp16", "precision.loss_scale=16777216", "train.global_batch_size=2"}},
        CapturedVariant{"fp8",
                        {"precision.recursions=fp8", "model.H_cycles=2", "optim.ema=0.9", "model.hidden_size=256",
                         "model.num_heads=4"}},
        CapturedVariant{"fp8_accumulation",
                        {"precision.recursions=fp8", "train.micro_batch_size=2", "precision.fp8_amax_history=3",
                         "precision.fp8_margin=1"}},
        CapturedVariant{"fp8_trm_mlp",
                        {"precision.recursions=fp8", "model.arch=trm", "model.H_layers=0", "model.H_cycles=2",
                         "model.no_ACT_continue=true", "model.mlp_t=true", "model.pos_encodings=none"}},
        CapturedVariant{"fp32", {"precision.compute=fp32"}},
        CapturedVariant{"reference_ops", {"ops.backend=reference"}}),
    [](const auto& info) { return info.param.name; });

// Each with a state of its own on the device.
constexpr const char* kForms[] = {"data.reference_semantics=true", "data.reference_semantics=false",
                                  "precision.recursions=fp8"};

void run_until_captured(SmallRun& run) {
  run.trainer.start_fresh();
  run.trainer.run_steps(8);
  ASSERT_EQ(run.trainer.captured_step().replays(), 5) << run.trainer.captured_step().reason();
}

// Whatever LibTorch knows to wait is an error.
TEST(CapturedTrain, TheHostWaitsForNothing) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    SmallRun run(dir / form, captured_on_gpu({form, "runtime.deterministic=false", "ops.gemm_tuning=off"}, true));
    ASSERT_NO_FATAL_FAILURE(run_until_captured(run));
    auto& state = c10::cuda::warning_state();
    state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
    EXPECT_NO_THROW(run.trainer.run_steps(40));
    state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
}

// And of all calls of the CUDA runtime, whoever makes them, none waits.
TEST(CapturedTrain, NoCallOfTheRuntimeWaits) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    SmallRun run(dir / form, captured_on_gpu({form, "runtime.deterministic=false", "ops.gemm_tuning=off"}, true));
    ASSERT_NO_FATAL_FAILURE(run_until_captured(run));
    StepTrace trace(run.runtime.device);
    run.trainer.run_steps(20);
    const StepProfile profile = trace.profile();
    EXPECT_TRUE(profile.gpu);
    EXPECT_GE(profile.launches, 20);
    for (const ProfileRow& row : profile.waits) {
      ADD_FAILURE() << row.calls << " calls of " << row.name << " in 20 steps, " << row.ms << " ms";
    }
  }
}

// The step before and after the warm-up of fp8 are two forms: each is warmed up and captured by itself.
TEST(CapturedTrain, Fp8BeginsInTheMiddle) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  const Overrides fp8 = {"precision.recursions=fp8", "precision.fp8_warmup_steps=25"};
  SmallRun eager(dir / "eager", captured_on_gpu(fp8, false)), graph(dir / "graph", captured_on_gpu(fp8, true));
  for (SmallRun* run : {&eager, &graph}) {
    run->trainer.start_fresh();
    run->trainer.run();
  }
  EXPECT_EQ(graph.trainer.captured_step().replays(), 54) << graph.trainer.captured_step().reason();
  expect_identical_state(eager.tensors(), graph.tensors());
}

// Two trainings of different shapes in turn, their graphs in one memory pool, against each alone.
TEST(CapturedTrain, ShapesInTurn) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  const Overrides small = captured_on_gpu({}, true), large = captured_on_gpu({"train.global_batch_size=64"}, true);
  SmallRun a(dir / "a", small), b(dir / "b", large);
  a.trainer.start_fresh();
  b.trainer.start_fresh();
  for (int i = 0; i < 20; ++i) {
    a.trainer.run_steps(1);
    b.trainer.run_steps(1);
    if (i % 7 == 6) a.task.evaluate([](const tasks::EvalProgress&) {});
  }
  SmallRun a_alone(dir / "a_alone", small), b_alone(dir / "b_alone", large);
  a_alone.trainer.start_fresh();
  a_alone.trainer.run_steps(20);
  b_alone.trainer.start_fresh();
  b_alone.trainer.run_steps(20);
  for (auto [together, alone] : {std::pair{&a, &a_alone}, std::pair{&b, &b_alone}}) {
    EXPECT_GT(together->trainer.captured_step().replays(), 10);
    const auto want = alone->tensors(), got = together->tensors();
    for (const auto& [name, tensor] : want) {
      if (name.rfind("loop.", 0) == 0) continue;  // how many steps the host has read so far
      EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
    }
  }
}

// One infinite weight in the middle of the training, seen by a replay.
class DivergingTask : public tasks::PuzzleTask {
 public:
  using PuzzleTask::PuzzleTask;
  double load_batch(int64_t step, double lr_factor) override {
    if (step == 20) {
      const at::NoGradGuard no_grad;
      model().named_parameters()["lm_head.weight"].fill_(std::numeric_limits<float>::infinity());
      parameters().refresh_compute();
      for (const auto& item : model().named_parameters()) before[item.key()] = item.value().detach().clone();
    }
    return PuzzleTask::load_batch(step, lr_factor);
  }
  std::map<std::string, at::Tensor> before;
};

TEST(CapturedTrain, ANonFiniteGradientStopsReplaysAndLeavesTheWeights) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  const config::LoadedConfig loaded =
      testing::small_config(dir, captured_on_gpu({"optim.ema=0.9", "train.max_nonfinite_steps=1"}, true));
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  DivergingTask task(loaded.config, runtime);
  train::Trainer trainer(loaded.config, loaded.to_json(), runtime, task, dir / "small");
  trainer.start_fresh();
  try {
    trainer.run();
    FAIL() << "trained on with infinite weights";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::diverged);
    EXPECT_NE(std::string(e.what()).find("step 20 "), std::string::npos) << e.what();
  }
  EXPECT_GT(trainer.captured_step().replays(), 10);
  for (const auto& item : task.model().named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), task.before.at(item.key()))) << item.key();
  }
}

// A task whose step reads a value on the host.
class WaitingTask : public tasks::PuzzleTask {
 public:
  using PuzzleTask::PuzzleTask;
  void forward_backward(int64_t micro, const at::Tensor& scale, at::Tensor& sums) override {
    PuzzleTask::forward_backward(micro, scale, sums);
    last_count = sums[0].item<double>();
  }
  double last_count = 0;
};

class RefusingTask : public tasks::PuzzleTask {
 public:
  using PuzzleTask::PuzzleTask;
  std::string why_not_captured() const override { return "this task says so"; }
};

template <class Task>
std::string trained_with(const std::filesystem::path& dir, std::map<std::string, at::Tensor>& tensors) {
  const config::LoadedConfig loaded = testing::small_config(dir, captured_on_gpu({}, true));
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  Task task(loaded.config, runtime);
  train::Trainer trainer(loaded.config, loaded.to_json(), runtime, task, dir / "small");
  trainer.start_fresh();
  trainer.run();
  for (const TensorEntry& entry : list_state(trainer).tensors) tensors[entry.name] = entry.tensor.detach().clone();
  EXPECT_EQ(trainer.captured_step().replays(), 0);
  return trainer.captured_step().reason();
}

TEST(CapturedTrain, AStepThatCannotBeCapturedTrainsEagerlyAndSaysWhy) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  SmallRun eager(dir / "eager", captured_on_gpu({}, false));
  eager.trainer.start_fresh();
  eager.trainer.run();
  std::map<std::string, at::Tensor> waiting, refusing;
  EXPECT_NE(trained_with<WaitingTask>(dir / "waiting", waiting), "");
  expect_identical_state(eager.tensors(), waiting);
  EXPECT_EQ(trained_with<RefusingTask>(dir / "refusing", refusing), "this task says so");
  expect_identical_state(eager.tensors(), refusing);
}

}  // namespace
}  // namespace hrm
