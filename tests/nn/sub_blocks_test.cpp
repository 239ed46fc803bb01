#include "hrm/nn/sub_blocks.h"

#include "nn/sub_blocks_cases.h"

namespace hrm::nn {
namespace {

using testing::BlockResult;
using testing::distance;
using testing::run_block;

// With attention, with an MLP over positions, and with attention and a convolution.
std::vector<BlockSizes> block_kinds() {
  const BlockSizes sizes{.width = 24, .positions = 7, .heads = 3};
  std::vector<BlockSizes> kinds(3, sizes);
  kinds[1].mlp_t = true;
  kinds[2].convolution = true;
  return kinds;
}

TEST(SubBlocks, EqualThePlainBlock) {
  for (const BlockSizes& sizes : block_kinds()) {
    const at::Tensor x = at::randn({3, 7, 24}), grad = at::randn({3, 7, 24});
    const BlockResult fused = run_block(ops::Backend::fused, sizes, at::kCPU, at::kFloat, x, grad);
    const BlockResult plain = run_block(ops::Backend::reference, sizes, at::kCPU, at::kFloat, x, grad);
    EXPECT_LT(distance(fused.y, plain.y), 1e-6);
    ASSERT_EQ(fused.grads.size(), plain.grads.size());
    for (size_t i = 0; i < fused.grads.size(); ++i) EXPECT_LT(distance(fused.grads[i], plain.grads[i]), 2e-6) << i;
  }
}

TEST(SubBlocks, TheFirstPositionIsThatOfAllPositions) {
  for (const BlockSizes& sizes : block_kinds()) {
    for (const ops::Backend backend : {ops::Backend::fused, ops::Backend::reference}) {
      const BlockResult result =
          run_block(backend, sizes, at::kCPU, at::kFloat, at::randn({3, 7, 24}), at::randn({3, 7, 24}));
      EXPECT_EQ(result.first.sizes(), at::IntArrayRef({3, 24}));
      EXPECT_LT(distance(result.first, result.y.select(1, 0)), 1e-6);
    }
  }
}

// Weights that train need a gradient also where the input has none.
TEST(SubBlocks, TrainTheirWeightsWithoutAnInputGradient) {
  for (const bool convolution : {false, true}) {
    const BlockSizes sizes{.width = 16, .positions = 4, .heads = 2, .convolution = convolution};
    Block block(sizes, {}, at::kCPU);
    init_parameters(block, 0);
    ParameterSet parameters;
    parameters.build(block, at::kFloat);
    block.forward(at::randn({2, 4, 16})).sum().backward();
    for (const auto& parameter : parameters.all()) {
      EXPECT_GT(parameter.master.grad().abs().sum().item<double>(), 0) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace hrm::nn
