// The estimate of `plan` against the allocator, for recipes at their full size.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "commands/plan/plan.h"
#include "commands/plan_cases.h"
#include "hrm/commands/data.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/memory.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/registry.h"
#include "support/paths.h"
#include "tasks/contrastive/plan.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"
#include "train/small_run.h"

namespace hrm::commands {
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
    const std::string sudoku = test::source_dir() + "/data/sudoku/";
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

// Null, or what plan knows of the GPU.
const GpuFacts* known_gpu(const Runtime& runtime) {
  for (const GpuFacts& facts : known_gpus()) {
    if (runtime.device_name.find(facts.name) != std::string::npos) return &facts;
  }
  return nullptr;
}

// Six steps of a task made by `make_task`, of which `make_input` plans one.
template <class MakeTask, class MakeInput>
void expect_planned(const std::string& name, const config::LoadedConfig& loaded, MakeTask make_task,
                    MakeInput make_input) {
  const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
  const GpuFacts* gpu = known_gpu(runtime);
  if (gpu == nullptr) GTEST_SKIP() << runtime.device_name << " is not among the GPUs that plan knows";

  // What other tests left: the workspaces of cuBLAS are part of what plan counts.
  synchronize(runtime.device);
  at::cuda::clearCublasWorkspaces();
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(runtime.device.index());
  const int64_t before = memory_report(runtime.device).allocated;
  const auto task = make_task(runtime);
  const Plan plan = make_plan(make_input(*task, *gpu));
  const MemoryReport free = memory_report(runtime.device);
  if (plan.device_used > static_cast<double>(free.device_total - free.device_used)) {
    GTEST_SKIP() << "the GPU has not enough free memory for " << name;
  }
  {
    train::Trainer trainer(loaded.config, loaded.to_json(), runtime, *task, /*run_dir=*/"");
    trainer.start_fresh();
    trainer.run_steps(6);  // eager ones, the capture, and replays
    synchronize(runtime.device);
  }
  const auto peak = static_cast<double>(memory_report(runtime.device).allocated_peak - before);
  std::ostringstream text;
  text << name << ": planned " << plan.tensors_peak / (1 << 20) << " MiB, measured " << peak / (1 << 20) << " MiB";
  std::printf("%s\n", text.str().c_str());
  for (const PlanItem& item : plan.memory) text << "\n  " << item.name << " " << item.value / (1 << 20) << " MiB";
  EXPECT_LT(std::abs(plan.tensors_peak - peak), 0.1 * peak) << text.str() << "\n  at: " << plan.peak_moment;
}

TEST_P(PlanGpu, IsWithinATenthOfTheMeasuredPeak) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.push_back("ops.gemm_cache=" + testing::fresh_folder("cache").string());
  for (const std::string& text : data_of(GetParam().maze)) overrides.push_back(text);
  const config::LoadedConfig loaded =
      config::load_config({test::source_dir() + "/configs/puzzle/" + GetParam().file}, overrides);
  expect_planned(
      GetParam().name, loaded,
      [&](const Runtime& runtime) { return std::make_unique<tasks::PuzzleTask>(loaded.config, runtime); },
      [&](tasks::PuzzleTask& task, const GpuFacts& gpu) {
        PlanInput input = testing::make_plan_input(loaded.config, task.model().dims(), gpu);
        input.train_examples = GetParam().maze ? 64 : 1000;
        return input;
      });
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PlanGpu,
    ::testing::Values(
        Recipe{"HRM384", "hrm_sudoku17.json", {}, false},
        Recipe{"HRM384fp8", "hrm_sudoku17.json", {"precision.recursions=fp8"}, false},
        Recipe{"HRM768", "hrm_sudoku17.json", {"train.global_batch_size=768"}, false},
        Recipe{"TRM768", "trm_att_sudoku17.json", {}, false}, Recipe{"TRMMLP768", "trm_mlp_sudoku17.json", {}, false},
        Recipe{"URM384", "urm_sudoku17.json", {}, false},
        Recipe{"URM384AllCycles", "urm_sudoku17.json", {"model.gradient_cycles=2"}, false},
        Recipe{"URM384Recompute", "urm_sudoku17.json", {"model.gradient_cycles=2", "model.recompute=true"}, false},
        Recipe{"TRM768AllCycles",
               "trm_att_sudoku17.json",
               {"model.gradient_cycles=3", "model.loss_every_cycle=true", "model.recompute=true"},
               false},
        Recipe{"HRM384Recompute", "hrm_sudoku17.json", {"model.recompute=true"}, false},
        Recipe{"HRMMaze128", "hrm_maze30.json", {"train.global_batch_size=128", "train.micro_batch_size=0"}, true}),
    [](const auto& info) { return info.param.name; });

// Rows of text as long as the recipes', of a byte vocabulary.
class PlanGpuLanguage : public ::testing::TestWithParam<Recipe> {};

TEST_P(PlanGpuLanguage, IsWithinATenthOfTheMeasuredPeak) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.push_back("ops.gemm_cache=" + testing::fresh_folder("cache").string());
  overrides.push_back("data.train=" + testing::text_folder().string());
  overrides.push_back("data.test=none");
  overrides.push_back("train.eval_every=0");
  const config::LoadedConfig loaded =
      config::load_config({test::source_dir() + "/configs/language/" + GetParam().file}, overrides);
  expect_planned(
      GetParam().name, loaded,
      [&](const Runtime& runtime) { return std::make_unique<tasks::LanguageTask>(loaded.config, runtime); },
      [&](tasks::LanguageTask& task, const GpuFacts& gpu) {
        const int64_t vocabulary = std::stoll(task.signature().at("vocab_size"));
        return testing::make_plan_input(loaded.config, models::language_sizes(loaded.config.data, vocabulary), gpu);
      });
}

INSTANTIATE_TEST_SUITE_P(Recipes, PlanGpuLanguage,
                         ::testing::Values(Recipe{"Decoder", "code_decoder.json", {}},
                                           Recipe{"Hrm", "code_hrm.json", {}}, Recipe{"Experts", "code_moe.json", {}},
                                           Recipe{"Mamba2", "code_mamba.json", {}},
                                           Recipe{"Recompute", "code_decoder.json", {"lm.recompute=true"}}),
                         [](const auto& info) { return info.param.name; });

class PlanGpuContrastive : public ::testing::TestWithParam<Recipe> {};

TEST_P(PlanGpuContrastive, IsWithinATenthOfTheMeasuredPeak) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.push_back("data.train=" + testing::text_folder().string());
  overrides.push_back("data.test=none");
  overrides.push_back("train.eval_every=0");
  const config::LoadedConfig loaded =
      config::load_config({test::source_dir() + "/configs/contrastive/" + GetParam().file}, overrides);
  expect_planned(
      GetParam().name, loaded,
      [&](const Runtime& runtime) { return std::make_unique<tasks::ContrastiveTask>(loaded.config, runtime); },
      [&](tasks::ContrastiveTask&, const GpuFacts& gpu) {
        return make_plan_input(loaded.config,
                               std::make_shared<tasks::ContrastivePlan>(loaded.config.contrastive,
                                                                        tasks::contrastive_sizes(loaded.config)),
                               gpu);
      });
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PlanGpuContrastive,
    ::testing::Values(Recipe{"Headers", "headers.json", {}},
                      Recipe{"Large",
                             "headers.json",
                             {"contrastive.learned_slots=2048", "contrastive.state_dim=64",
                              "train.global_batch_size=1024"}},
                      Recipe{"Backprop", "headers.json", {"contrastive.rule=backprop", "runtime.cuda_graphs=false"}}),
    [](const auto& info) { return info.param.name; });

// A model with random weights, rows as long as the settings say, and the prompts of small_polychromic.h.
class PlanGpuCausal : public ::testing::TestWithParam<Recipe> {};

TEST_P(PlanGpuCausal, IsWithinATenthOfTheMeasuredPeak) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto folder = testing::fresh_folder("model");
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": ")" << GetParam().file << R"(", "vocab_size": 32000,
      "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 2048, "eos_token_id": 1, "bos_token_id": 2,
      "tie_word_embeddings": true)"
                                        << (GetParam().file == "qwen3_moe" ? R"(, "num_experts": 16,
      "num_experts_per_tok": 4, "moe_intermediate_size": 512, "norm_topk_prob": true})"
                                                                           : "}");
  std::vector<std::string> overrides{"hf.model=" + folder.string(),
                                     "chat.max_length=513",
                                     "chat.buckets=1",
                                     "lora.r=16",
                                     "polychromic.max_generation_length=100",
                                     "runtime.device=auto",
                                     "ops.gemm_cache=" + testing::fresh_folder("cache").string()};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  const config::LoadedConfig loaded = testing::small_polychromic_config(testing::fresh_folder("run"), overrides);
  expect_planned(
      GetParam().name, loaded,
      [&](const Runtime& runtime) { return std::make_unique<tasks::PolychromicTask>(loaded.config, runtime); },
      [&](tasks::PolychromicTask&, const GpuFacts& gpu) {
        return make_plan_input(loaded.config, tasks::task_spec(loaded.config).plan(loaded.config, {}).model, gpu);
      });
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PlanGpuCausal,
    ::testing::Values(Recipe{"Adapter", "qwen3", {"polychromic.objective=none"}},
                      Recipe{"Nf4", "llama", {"polychromic.objective=none", "hf.quantize=nf4"}},
                      Recipe{"Recompute", "llama", {"polychromic.objective=none", "hf.recompute=true"}},
                      Recipe{"Whole", "llama", {"polychromic.objective=none", "lora.r=0"}},
                      Recipe{"Gelu", "gemma", {"polychromic.objective=none", "lora.r=0"}},
                      Recipe{"Experts", "qwen3_moe", {"polychromic.objective=none"}},
                      Recipe{"Completions", "qwen3", {}},
                      Recipe{"Apart", "qwen3", {"polychromic.share_prompts=answers"}},
                      Recipe{"Rewards",
                             "qwen3",
                             {"polychromic.objective=none", "grpo.start_step=1", "grpo.rewards=length",
                              "grpo.num_generations=4", "grpo.max_completion_length=64"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hrm::commands
