#include "nn/step_rows_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::nn {
namespace {

using testing::expect_steps_as_rows;
using testing::StepCase;
using testing::SteppedBlocks;

// Layers as large as those of a model of width 1,024, so that the kernels for few rows take them, and small ones.
TEST(StepRowsGpu, OfEachFormat) {
  HRM_NEEDS_GPU();
  for (const bool large : {true, false}) {
    const AttentionSizes sizes =
        large ? AttentionSizes{.width = 1024, .heads = 16, .kv_heads = 8, .head_dim = 128, .qk_norm = true}
              : AttentionSizes{.width = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .qk_norm = true};
    for (const WeightFormat format : {WeightFormat::f32, WeightFormat::nf4, WeightFormat::fp8, WeightFormat::int8}) {
      for (const LoraMode mode : {LoraMode::off, LoraMode::adapter}) {
        const StepCase c{.attention = sizes, .inner = large ? 3072 : 512, .format = format, .mode = mode};
        expect_steps_as_rows(c, at::kBFloat16, at::kCUDA, 0.03);
      }
    }
  }
}

// Weights in e4m3 are read with rows in pairs from the first block's output product on.
TEST(StepRowsGpu, InPairs) {
  HRM_NEEDS_GPU();
  const AttentionSizes sizes{.width = 2048, .heads = 16, .kv_heads = 8, .head_dim = 128, .qk_norm = true};
  for (const LoraMode mode : {LoraMode::off, LoraMode::adapter}) {
    const StepCase c{.attention = sizes, .inner = 2304, .format = WeightFormat::fp8, .mode = mode};
    expect_steps_as_rows(c, at::kBFloat16, at::kCUDA, 0.03);
    SteppedBlocks blocks(c, at::kBFloat16, at::kCUDA);
    blocks.by_steps(blocks.input());
    const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
    EXPECT_EQ(blocks.pairs_handed_on(), hopper ? SteppedBlocks::kLength : 0);
  }
}

}  // namespace
}  // namespace hrm::nn
