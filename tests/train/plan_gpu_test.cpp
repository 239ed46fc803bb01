// The estimate of `plan` against the allocator, for five recipes at their full size.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "hrm/data/commands.h"
#include "hrm/runtime/memory.h"
#include "train/plan.h"
#include "train/small_run.h"

namespace hrm::train {
namespace {

struct Recipe {
  std::string name, file;
  std::vector<std::string> overrides;
  bool maze = false;
};

void PrintTo(const Recipe& recipe, std::ostream* out) {
  *out << recipe.name;
}

class PlanGpu : public ::testing::TestWithParam<Recipe> {};

std::vector<std::string> data_of(bool maze) {
  if (!maze) {
    const std::string sudoku = HRM_SOURCE_DIR "/data/sudoku/";
    return {"data.train=" + sudoku + "train_17clue_1k.csv", "data.test=" + sudoku + "test_17clue_2k.csv"};
  }
  const auto dir = testing::fresh_folder("maze");
  std::ostringstream ignored;
  data::MazeCommand maze_command;
  maze_command.generate = true;
  maze_command.train = 64;
  maze_command.test = 2;
  maze_command.min_path = 20;
  maze_command.out = dir.string();
  data::run_data_maze(maze_command, ignored);
  return {"data.train=" + dir.string(), "data.test=" + dir.string()};
}

TEST_P(PlanGpu, IsWithinATenthOfTheMeasuredPeak) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.push_back("ops.gemm_cache=" + testing::fresh_folder("cache").string());
  for (const std::string& text : data_of(GetParam().maze)) overrides.push_back(text);
  const config::LoadedConfig loaded =
      config::load_config({HRM_SOURCE_DIR "/configs/puzzle/" + GetParam().file}, overrides);
  const Runtime runtime = tasks::start_runtime_and_ops(loaded.config);
  GpuFacts gpu = known_gpus().front();
  bool known = false;
  for (const GpuFacts& facts : known_gpus()) {
    if (known || runtime.device_name.find(facts.name) == std::string::npos) continue;
    gpu = facts;
    known = true;
  }
  if (!known) GTEST_SKIP() << runtime.device_name << " is not among the GPUs that plan knows";

  // What other tests left: the workspaces of cuBLAS are part of what plan counts.
  synchronize(runtime.device);
  at::cuda::clearCublasWorkspaces();
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(runtime.device.index());
  const int64_t before = memory_report(runtime.device).allocated;
  tasks::PuzzleTask task(loaded.config, runtime);
  PlanInput input = make_plan_input(loaded.config, task.model().dims(), gpu);
  input.train_examples = GetParam().maze ? 64 : 1000;
  const Plan plan = make_plan(input);
  const MemoryReport free = memory_report(runtime.device);
  if (plan.device_used > static_cast<double>(free.device_total - free.device_used)) {
    GTEST_SKIP() << "the GPU has not enough free memory for " << GetParam().name;
  }
  {
    Trainer trainer(loaded.config, loaded.to_json(), runtime, task, /*run_dir=*/"");
    trainer.start_fresh();
    trainer.run_steps(6);  // eager ones, the capture, and replays
    synchronize(runtime.device);
  }
  const auto peak = static_cast<double>(memory_report(runtime.device).allocated_peak - before);
  std::ostringstream text;
  text << GetParam().name << ": planned " << plan.tensors_peak / (1 << 20) << " MiB, measured " << peak / (1 << 20)
       << " MiB";
  std::printf("%s\n", text.str().c_str());
  for (const PlanItem& item : plan.memory) text << "\n  " << item.name << " " << item.value / (1 << 20) << " MiB";
  EXPECT_LT(std::abs(plan.tensors_peak - peak), 0.1 * peak) << text.str() << "\n  at: " << plan.peak_moment;
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PlanGpu,
    ::testing::Values(
        Recipe{"HRM384", "hrm_sudoku17.json", {}, false},
        Recipe{"HRM384fp8", "hrm_sudoku17.json", {"precision.recursions=fp8"}, false},
        Recipe{"HRM768", "hrm_sudoku17.json", {"train.global_batch_size=768"}, false},
        Recipe{"TRM768", "trm_att_sudoku17.json", {}, false}, Recipe{"TRMMLP768", "trm_mlp_sudoku17.json", {}, false},
        Recipe{"HRMMaze128", "hrm_maze30.json", {"train.global_batch_size=128", "train.micro_batch_size=0"}, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hrm::train
