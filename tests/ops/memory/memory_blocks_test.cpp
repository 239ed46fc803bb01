#include "ops/memory/memory_blocks_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

const MemoryBlocksCase kSmall{3, 5, 16, 24, 2, 2, 3};

TEST(MemoryBlocks, EqualTheOracleInFloat64) {
  for (const MemoryBlocksCase& c :
       {kSmall, MemoryBlocksCase{1, 1, 8, 8, 1, 1, 1}, MemoryBlocksCase{2, 7, 24, 40, 3, 3, 2, true}}) {
    const MemoryInput input = memory_input(c, at::kDouble).to(at::kDouble);
    const MemoryResult found = ours(input), want = oracle(input);
    EXPECT_LE(largest_difference(found.out, want.out), 1e-12) << name_of(at::kDouble, c);
    size_t i = 0;
    for (const auto& [name, leaf] : input.leaves()) {
      EXPECT_LE(largest_difference(found.grads[i], want.grads[i]),
                1e-11 * (1 + want.grads[i].abs().max().item<double>()))
          << name_of(at::kDouble, c) << ", gradient of " << name;
      ++i;
    }
  }
}

TEST(MemoryBlocks, AsGoodAsPlainAten) {
  expect_good_memory_blocks(kSmall, at::kFloat);
  expect_good_memory_blocks({2, 33, 64, 96, 4, 2, 2, true}, at::kFloat);
}

// The list that memory_blocks_forward saves is that of the oracle.
TEST(MemoryBlocks, SaveWhatTheOracleSaves) {
  const at::NoGradGuard no_grad;
  const MemoryInput input = memory_input({2, 7, 24, 40, 3, 2, 3, true}, at::kDouble).to(at::kDouble);
  const auto run = [&](auto&& call) {
    return call(input.state, input.extra, input.pos, input.blocks, input.norm, input.options, true);
  };
  const std::vector<at::Tensor> found = run(memory_blocks_by_layers), want = run(reference::memory_blocks);
  ASSERT_EQ(found.size(), want.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].sizes(), want[i].sizes()) << i;
    EXPECT_LE(largest_difference(found[i], want[i]), 1e-11) << i;
  }
}

// By central differences, independent of any derivative.
TEST(MemoryBlocks, GradientsAreSlopes) {
  const MemoryInput input = memory_input({2, 3, 8, 12, 2, 2, 2, true}, at::kDouble).to(at::kDouble);
  const MemoryResult found = ours(input);
  const at::NoGradGuard no_grad;
  const auto loss = [&] {
    return (memory_blocks(input.state, input.extra, input.pos, input.blocks, input.norm, input.options) * input.grad)
        .sum()
        .item<double>();
  };
  size_t i = 0;
  for (const auto& [name, leaf] : input.leaves()) {
    for (const int64_t place : {int64_t{0}, leaf.numel() / 2, leaf.numel() - 1}) {
      at::Tensor element = leaf.detach().view({-1})[place];
      constexpr double kStep = 1e-5;
      element.add_(kStep);
      const double above = loss();
      element.sub_(2 * kStep);
      const double below = loss();
      element.add_(kStep);
      const double slope = (above - below) / (2 * kStep);
      EXPECT_NEAR(found.grads[i].reshape({-1})[place].item<double>(), slope, 1e-6 * (1 + std::abs(slope)))
          << name << " " << place;
    }
    ++i;
  }
}

TEST(MemoryBlocks, FrozenWeightsGetNothing) {
  const at::NoGradGuard no_grad;
  const MemoryInput input = memory_input(kSmall, at::kFloat);
  const auto [out, saved] =
      memory_blocks_forward(input.state, input.extra, input.pos, input.blocks, input.norm, input.options);
  std::vector<MemoryBlockWeights> buffers(input.blocks.size());
  buffers[1].down = at::zeros_like(input.blocks[1].down);
  memory_blocks_backward(input.grad, saved, input.blocks, input.norm, input.options, buffers);
  EXPECT_GT(buffers[1].down.abs().max().item<float>(), 0);
}

TEST(MemoryBlocks, SayWhatDoesNotFit) {
  const MemoryInput good = memory_input(kSmall, at::kFloat);
  const auto run = [](const MemoryInput& in) {
    return error_of([&] { memory_blocks(in.state, in.extra, in.pos, in.blocks, in.norm, in.options); });
  };
  EXPECT_EQ(run(good), "");
  MemoryInput bad = good;
  bad.extra = at::zeros({4, 16});
  expect_message(run(bad), {"hrm::memory_blocks", "extra", "[3, 16]", "[4, 16]"});
  bad = good;
  bad.options.heads = 3;
  expect_message(run(bad), {"heads 3", "[3, 5, 16]"});
  bad = good;
  bad.options.steps = 0;
  expect_message(run(bad), {"steps"});
  bad = good;
  bad.blocks[1].gate_up = at::zeros({40, 16});
  expect_message(run(bad), {"gate_up", "[48, 16]", "[40, 16]"});
  bad = good;
  bad.blocks[0].q_norm = at::ones({8});
  expect_message(run(bad), {"q_norm with k_norm"});
  bad = good;
  bad.norm = at::ones({16}, at::kHalf);
  expect_message(run(bad), {"norm must be Float"});
  bad = good;
  bad.blocks.clear();
  expect_message(run(bad), {"no blocks"});
}

}  // namespace
}  // namespace hrm::ops
