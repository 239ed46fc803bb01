// Training with the step captured in a CUDA graph, and its answers with it, is training.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>

#include "train/small_polychromic.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallPolychromic;

struct PolychromicGpuVariant {
  std::string name;
  std::vector<std::string> overrides;
};

class PolychromicGpu : public ::testing::TestWithParam<PolychromicGpuVariant> {};

TEST_P(PolychromicGpu, GraphEqualsEagerBitForBit) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  std::map<std::string, at::Tensor> state[2];
  for (const bool graphs : {false, true}) {
    std::vector<std::string> overrides{"runtime.device=cuda", "runtime.deterministic=true", "train.steps=20",
                                       "chat.buckets=1",
                                       graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"};
    overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    SmallPolychromic run(dir / (graphs ? "graph" : "eager"), overrides);
    run.trainer.start_fresh();
    ASSERT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(run.trainer.captured_step().replays() > 0, graphs) << run.trainer.captured_step().reason();
    state[graphs ? 1 : 0] = run.tensors();
  }
  ASSERT_EQ(state[0].size(), state[1].size());
  for (const auto& [name, tensor] : state[0]) EXPECT_TRUE(at::equal(tensor, state[1].at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "eager"), metrics_without_timing(dir / "graph"));
}

std::string experts_folder() {
  return "hf.model=" + (testing::answers_folder() / "experts").string();
}

// Quantised layers take turns in one workspace whose address the graphs know. `responses`: answers in one pass with
// the responses, whose tables the graphs read.
INSTANTIATE_TEST_SUITE_P(
    Variants, PolychromicGpu,
    ::testing::Values(PolychromicGpuVariant{"nf4", {"hf.quantize=nf4", "lora.dropout=0.1"}},
                      PolychromicGpuVariant{"fp8", {"hf.quantize=fp8", "lora.dropout=0.1"}},
                      PolychromicGpuVariant{"fp8_blocks",
                                            {"lora.r=0", "precision.blocks=fp8", "train.micro_batch_size=2",
                                             "precision.fp8_warmup_steps=6"}},
                      PolychromicGpuVariant{"fp8_blocks_current",
                                            {"lora.r=0", "precision.blocks=fp8", "precision.fp8_scaling=current",
                                             "polychromic.share_prompts=answers"}},
                      PolychromicGpuVariant{"int8", {"hf.quantize=int8"}},
                      PolychromicGpuVariant{"fake_fp8", {"lora.r=0", "precision.fake_quantize=fp8"}},
                      PolychromicGpuVariant{"responses", {"train.micro_batch_size=2"}},
                      PolychromicGpuVariant{"experts", {experts_folder()}},
                      PolychromicGpuVariant{"experts_trained", {experts_folder(), "lora.r=0"}},
                      PolychromicGpuVariant{
                          "grpo",
                          {"train.micro_batch_size=2", "grpo.start_step=1", "grpo.rewards=length",
                           "polychromic.objective=none", "grpo.num_generations=4", "grpo.num_iterations=2",
                           "polychromic.max_generation_length=100", "grpo.max_completion_length=24"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hrm
