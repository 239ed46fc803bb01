// The options of the plain mixture of experts that the reference cases do not use.

#include "ops/moe/moe_ref.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm::ops::reference {
namespace {

TEST(MoeReference, SigmoidRouter) {
  const at::Tensor logits = at::randn({5, 4});
  const MoeRouting r = moe_route(logits, {.top_k = 2, .router = Router::sigmoid, .capacity_factor = 0});
  EXPECT_TRUE(at::equal(r.probs, at::sigmoid(logits)));
  EXPECT_TRUE(at::equal(r.gate, std::get<0>(at::sigmoid(logits).topk(2, -1))));
  const MoeRouting even =
      moe_route(logits, {.top_k = 2, .router = Router::sigmoid, .renormalise = true, .capacity_factor = 0});
  EXPECT_TRUE(at::allclose(even.gate.sum(-1), at::ones({5})));
  EXPECT_TRUE(at::allclose(even.gate.select(1, 0) / even.gate.select(1, 1), r.gate.select(1, 0) / r.gate.select(1, 1)));
}

// Without a capacity everything is kept, whatever the load.
TEST(MoeReference, Dropless) {
  at::Tensor logits = at::zeros({6, 3});
  logits.select(1, 1).fill_(5);
  EXPECT_EQ(moe_route(logits, {.capacity_factor = 1}).kept.sum().item<int64_t>(), 2);
  const MoeRouting r = moe_route(logits, {.capacity_factor = 0});
  EXPECT_TRUE(r.kept.all().item<bool>());
  EXPECT_EQ(r.load[1].item<int64_t>(), 6);
}

TEST(MoeReference, SharedExpertsAndPicks) {
  const at::Tensor x = at::randn({4, 3}, at::kDouble), up = at::randn({2, 5, 3}, at::kDouble);
  const at::Tensor down = at::randn({2, 3, 5}, at::kDouble);
  at::Tensor want = at::zeros({4, 3}, at::kDouble);
  for (int64_t e = 0; e < 2; ++e) want += at::gelu(x.mm(up[e].t())).mm(down[e].t());
  EXPECT_TRUE(at::allclose(moe_shared(x, up, down), want));
  // All experts picked with gate 1 are the same sum.
  const MoeRouting all{.probs = {},
                       .index = at::tensor({0, 1}, at::kLong).expand({4, 2}),
                       .gate = at::ones({4, 2}, at::kDouble),
                       .kept = at::ones({4, 2}, at::kBool),
                       .load = {}};
  EXPECT_TRUE(at::allclose(moe_experts(x, all, up, down), want));
}

// The bias moves the choice, and the gates stay those of the router.
TEST(MoeReference, BiasForTheChoiceAlone) {
  const at::Tensor logits = at::tensor({2.0F, 1.0F, 0.0F}).view({1, 3});
  const at::Tensor bias = at::tensor({0.0F, 0.0F, 1.0F});
  const MoeRouting r = moe_route(logits, {.capacity_factor = 0}, bias);
  EXPECT_EQ(r.index.item<int64_t>(), 2);
  EXPECT_FLOAT_EQ(r.gate.item<float>(), at::softmax(logits, -1)[0][2].item<float>());
  const at::Tensor moved = moe_balanced_bias(bias, at::tensor({6, 0, 3}, at::kLong), 0.1);
  EXPECT_TRUE(at::allclose(moved, at::tensor({-0.1F, 0.1F, 1.0F})));
}

TEST(MoeReference, RouterZLoss) {
  const at::Tensor logits = at::randn({7, 4}, at::kDouble);
  EXPECT_NEAR(moe_router_z_loss(logits).item<double>(), logits.exp().sum(-1).log().pow(2).mean().item<double>(), 1e-12);
}

// Balanced picks with equal probabilities give 1.
TEST(MoeReference, LoadLossOfABalancedRouter) {
  MoeRouting r;
  r.probs = at::full({8, 4}, 0.25);
  r.load = at::full({4}, 2, at::kLong);
  EXPECT_NEAR(moe_load_loss(r).item<double>(), 1, 1e-6);
}

}  // namespace
}  // namespace hrm::ops::reference
