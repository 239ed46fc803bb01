// All steps in one node of autograd against one block after the other.
#include "hrm/nn/memory_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/nn/init.h"
#include "hrm/nn/parameter.h"
#include "hrm/ops/backend.h"

namespace hrm::nn {
namespace {

struct Options {
  bool qk_norm = false, recompute = false, gelu = false;
  int64_t kv_heads = 2;
};

struct Level : torch::nn::Module {
  explicit Level(const Options& o) {
    const TransformerBlockOptions options{
        .attention = {.width = 16, .heads = 2, .kv_heads = o.kv_heads, .head_dim = 8, .qk_norm = o.qk_norm},
        .recompute = o.recompute};
    for (int i = 0; i < 2; ++i) {
      const std::shared_ptr<FeedForward> mlp =
          o.gelu && i == 1 ? std::shared_ptr<FeedForward>(std::make_shared<GeluFeedForward>(16, 24, at::kCPU))
                           : std::make_shared<SwigluFeedForward>(16, 24, at::kCPU);
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<TransformerBlock>(options, mlp, at::kCPU)));
    }
    norm = register_module("norm", std::make_shared<RmsNorm>(16, 1e-6, at::kCPU));
    pos = register_parameter("pos", at::empty({5, 16}));
  }
  std::vector<std::shared_ptr<TransformerBlock>> blocks;
  std::shared_ptr<RmsNorm> norm;
  at::Tensor pos;
};

struct Result {
  at::Tensor y;
  std::vector<std::pair<std::string, at::Tensor>> grads;
  std::vector<int> groups;  // in the order in which they were told complete
};

Result run(const Options& o, ops::Backend backend, bool state_needs_grad, const std::string& frozen = "") {
  ops::set_backend(backend);
  Level level(o);
  init_parameters(level, 3);
  {
    const at::NoGradGuard no_grad;
    at::manual_seed(1);
    level.pos.normal_();
  }
  for (auto& item : level.named_parameters()) item.value().set_requires_grad(item.key() != frozen);
  ParameterSet set;
  set.build(level, at::kFloat);
  Result result;
  set.gradient_ready()->listen([&](int group) { result.groups.push_back(group); });
  const at::Tensor state = at::randn({3, 5, 16}).requires_grad_(state_needs_grad),
                   extra = at::randn({3, 16}).requires_grad_(), grad = at::randn({3, 5, 16});
  const at::Tensor y = memory_blocks(level.blocks, *level.norm, state, extra, level.pos, 3);
  y.backward(grad);
  result.y = y.detach();
  for (const Parameter& p : set.all()) result.grads.emplace_back(p.name, p.master.grad().clone());
  result.grads.emplace_back("extra", extra.grad());
  if (state_needs_grad) result.grads.emplace_back("state", state.grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(memory_blocks(level.blocks, *level.norm, state, extra, level.pos, 3), y, 1e-5, 1e-6));
  }
  ops::set_backend(ops::Backend::fused);
  return result;
}

void expect_equal(const Options& o, bool state_needs_grad, const std::string& frozen = "") {
  const Result ours = run(o, ops::Backend::fused, state_needs_grad, frozen),
               want = run(o, ops::Backend::reference, state_needs_grad, frozen);
  EXPECT_TRUE(at::allclose(ours.y, want.y, 1e-5, 1e-5));
  ASSERT_EQ(ours.grads.size(), want.grads.size());
  for (size_t i = 0; i < ours.grads.size(); ++i) {
    const auto& [name, grad] = ours.grads[i];
    EXPECT_GT(want.grads[i].second.abs().max().item<float>(), 0) << name;
    EXPECT_TRUE(at::allclose(grad, want.grads[i].second, 1e-4, 1e-4)) << name;
  }
  auto sorted = ours.groups, others = want.groups;
  std::sort(sorted.begin(), sorted.end());
  std::sort(others.begin(), others.end());
  EXPECT_EQ(sorted, others) << "groups that were told complete";
  EXPECT_EQ(sorted, (std::vector<int>{0, 1}));
}

TEST(MemoryBlocks, EqualBlocksOneAfterTheOther) {
  for (const bool state_needs_grad : {false, true}) {
    expect_equal({}, state_needs_grad);
    expect_equal({.qk_norm = true}, state_needs_grad);
    expect_equal({.recompute = true}, state_needs_grad);
  }
}

TEST(MemoryBlocks, RecomputationChangesNothing) {
  const Result kept = run({}, ops::Backend::fused, true), again = run({.recompute = true}, ops::Backend::fused, true);
  EXPECT_TRUE(at::equal(again.y, kept.y));
  for (size_t i = 0; i < kept.grads.size(); ++i) {
    EXPECT_TRUE(at::equal(again.grads[i].second, kept.grads[i].second)) << kept.grads[i].first;
  }
}

TEST(MemoryBlocks, AFrozenWeightChangesNothingElse) {
  expect_equal({}, true, "block1.mlp.down_proj.weight");
  expect_equal({.qk_norm = true}, false, "block0.self_attn.q_norm.weight");
}

// Blocks that ops::memory_blocks does not know.
TEST(MemoryBlocks, OtherBlocks) {
  expect_equal({.gelu = true}, true);
  expect_equal({.kv_heads = 1}, true);
}

}  // namespace
}  // namespace hrm::nn
