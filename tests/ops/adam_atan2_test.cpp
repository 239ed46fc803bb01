#include "hrm/ops/adam_atan2.h"

#include <numbers>

#include "ops/adam_atan2_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(AdamAtan2, FollowsTheEquations) {
  expect_exact_steps(make_adam(adam_shapes(), at::kCPU), 4, "cpu");
}

TEST(AdamAtan2, OtherBetas) {
  AdamState state = make_adam({{40}, {7, 3}}, at::kCPU);
  state.beta1 = 0;
  state.beta2 = 0;
  expect_exact_steps(state.clone(), 3, "betas 0");
  state.beta1 = 0.999;
  state.beta2 = 0.9999;
  expect_exact_steps(state, 3, "betas near 1");
}

TEST(AdamAtan2, SkipLeavesEverything) {
  expect_skip(at::kCPU);
}

TEST(AdamAtan2, FirstStepIsBounded) {
  // atan2(m, sqrt(v)/...) of a first step: m = (1-b1) g and the root is |g|, so the move is lr/(1-b1) atan(1-b1),
  // whatever the size of the gradient; where the gradient is zero only the decay acts.
  AdamState state = make_adam({{4}}, at::kCPU);
  state.params[0].fill_(1);
  state.weight_decay = {0.5};
  state.grads[0].copy_(at::tensor({1e-10f, -1e10f, 0.f, 3.f}));
  state.run();
  const double move = 1e-2 / 0.1 * std::atan(0.1);
  const double kept = 1 - 1e-2 * 0.5;
  const std::vector<double> expected = {kept - move, kept + move, kept, kept - move};
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(state.params[0][i].item<double>(), expected[static_cast<size_t>(i)], 2e-7);
}

TEST(AdamAtan2, GradientsAreOnlyRead) {
  AdamState state = make_adam({{33}}, at::kCPU);
  set_grads(state, 1);
  state.grad_scale.fill_(0.5);
  const at::Tensor before = state.grads[0].clone();
  state.run();
  expect_same_bits(state.grads[0], before);
}

TEST(AdamAtan2, LeavesUnderGradModeAndStaleGraphs) {
  AdamState state = make_adam({{4}}, at::kCPU);
  state.params[0].requires_grad_();
  const at::Tensor loss = state.params[0].square().sum();  // keeps the old values for its backward pass
  set_grads(state, 1);
  state.run();
  EXPECT_TRUE(state.params[0].is_leaf());
  EXPECT_THROW(loss.backward(), c10::Error) << "the graph's weights were changed in place";
}

TEST(AdamAtan2, BadInputIsNamed) {
  const AdamState good = make_adam({{2, 3}, {4}}, at::kCPU);
  const auto message = [&](const std::function<void(AdamState&)>& spoil) {
    AdamState state = good.clone();
    spoil(state);
    return error_of([&] { state.run(); });
  };
  ASSERT_EQ(message([](AdamState&) {}), "");
  expect_message(message([](AdamState& s) { s.grads.pop_back(); }), {"hrm::adam_atan2_", "2 params", "1 grads"});
  expect_message(message([](AdamState& s) { s.weight_decay.pop_back(); }), {"hrm::adam_atan2_", "1 weight decays"});
  expect_message(message([](AdamState& s) { s.grads[1] = at::zeros({5}); }),
                 {"hrm::adam_atan2_", "grads[1]", "[5]", "[4]"});
  expect_message(message([](AdamState& s) {
                   s.exp_avgs[0] = at::zeros({3, 2}).t();
                 }),
                 {"hrm::adam_atan2_", "exp_avgs[0]", "[2, 3]", "contiguous", "[1, 2]"});
  expect_message(message([](AdamState& s) { s.params[1] = s.params[1].to(at::kBFloat16); }),
                 {"hrm::adam_atan2_", "params[1]", "BFloat16", "[4]"});
  expect_message(message([](AdamState& s) { s.lr = at::zeros({1}); }), {"hrm::adam_atan2_", "lr", "0-dim", "[1]"});
  expect_message(message([](AdamState& s) { s.skip = at::zeros({}, at::kBool); }),
                 {"hrm::adam_atan2_", "skip", "Bool"});
  expect_message(message([](AdamState& s) { s.beta1 = 1; }), {"hrm::adam_atan2_", "beta", "1"});
}

}  // namespace
}  // namespace hrm::ops
