// A decoding step gives what a pass over whole rows gives, for every format of the weights, with adapters and without.
#include "hrm/nn/step_rows.h"

#include "nn/step_rows_cases.h"

namespace hrm::nn {
namespace {

using testing::expect_steps_as_rows;
using testing::StepCase;

constexpr AttentionSizes kStepSizes{.width = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .qk_norm = true};

TEST(StepRows, OfEachFormat) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::nf4, WeightFormat::fp8, WeightFormat::int8}) {
    for (const LoraMode mode : {LoraMode::off, LoraMode::adapter}) {
      StepCase c{.attention = kStepSizes, .inner = 48, .format = format, .mode = mode};
      expect_steps_as_rows(c, at::kFloat, at::kCPU, 1e-5);
      expect_steps_as_rows(c, at::kBFloat16, at::kCPU, 0.03);
      c.form.gelu = true;
      expect_steps_as_rows(c, at::kFloat, at::kCPU, 1e-5);
    }
  }
}

// What no kernel of a step knows.
TEST(StepRows, OfOtherForms) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::fp8}) {
    for (const LoraMode mode : {LoraMode::off, LoraMode::adapter}) {
      StepCase c{.attention = kStepSizes, .inner = 48, .format = format, .mode = mode, .dora = true};
      expect_steps_as_rows(c, at::kFloat, at::kCPU, 1e-5);
      c.dora = false;
      c.attention.bias = true;
      expect_steps_as_rows(c, at::kFloat, at::kCPU, 1e-5);
      c.attention.qk_norm = false;
      c.attention.wide_qk_norm = true;
      expect_steps_as_rows(c, at::kFloat, at::kCPU, 1e-5);
    }
  }
}

// The fused op is called once for each layer, and once more for each adapter. A norm of its own stands before a product
// with an adapter, since no kernel here prepares it; nothing is gated or added by itself.
TEST(StepRows, CallsOneOpForEachLayer) {
  for (const auto& [format, mode, products] : {std::tuple{WeightFormat::f32, LoraMode::off, 4},
                                               {WeightFormat::fp8, LoraMode::off, 4},
                                               {WeightFormat::int8, LoraMode::off, 4},
                                               {WeightFormat::f32, LoraMode::adapter, 8},
                                               {WeightFormat::fp8, LoraMode::adapter, 8},
                                               {WeightFormat::nf4, LoraMode::off, 0}}) {
    const StepCase c{.attention = kStepSizes, .inner = 48, .format = format, .mode = mode};
    testing::SteppedBlocks blocks(c, at::kFloat, at::kCPU);
    const at::Tensor x = blocks.input();
    const testing::OpCount fused("hrm::decode_linear");
    blocks.by_steps(x);
    EXPECT_EQ(fused.count(), 2 * testing::SteppedBlocks::kLength * products) << testing::describe(c);
  }
}

}  // namespace
}  // namespace hrm::nn
