#include "hrm/ops/adam.h"

#include <ATen/Parallel.h>

#include "ops/optim/adam_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Adam, FollowsTheEquations) {
  for (const AdamRule rule : kRules) {
    expect_exact_steps(make_adam(adam_shapes(), at::kCPU, rule), 4, "cpu");
    expect_exact_steps(make_adam({{40}, {7, 3}}, at::kCPU, rule, at::kHalf), 4, "float16 copies");
    expect_exact_steps(bare(make_adam({{40}, {7, 3}}, at::kCPU, rule)), 4, "nothing beside");
  }
}

void expect_threads_and_backend_agree(AdamRule rule) {
  const AdamState start = make_adam({{100000}, {16384}, {3, 7}}, at::kCPU, rule);
  AdamState one = start.clone(), two = start.clone(), plain = start.clone();
  const int threads = at::get_num_threads();
  for (int64_t t = 1; t <= 2; ++t) {
    for (AdamState* state : {&one, &two, &plain}) {
      set_grads(*state, t);
      at::set_num_threads(state == &two ? 2 : 1);
      if (state != &plain) {
        state->run();
        continue;
      }
      const WithReference with_reference;
      state->run();
    }
  }
  at::set_num_threads(threads);
  const auto a = one.written(), b = two.written(), c = plain.written();
  for (size_t i = 0; i < a.size(); ++i) {
    expect_same_bits(b[i], a[i], cat("two threads, tensor ", i));
    // A copy in bfloat16 may round the other way.
    const double most = c[i].scalar_type() == at::kBFloat16 ? 1.0 / 128 : 1e-5;
    EXPECT_LE(largest_difference(c[i], a[i]), most * (1 + c[i].abs().max().item<double>()))
        << "reference, tensor " << i;
  }
}

TEST(Adam, ThreadsAndBackend) {
  for (const AdamRule rule : kRules) expect_threads_and_backend_agree(rule);
}

TEST(Adam, OtherBetas) {
  AdamState state = make_adam({{40}, {7, 3}}, at::kCPU);
  state.beta1 = 0;
  state.beta2 = 0;
  state.average_decay = 0;
  expect_exact_steps(state.clone(), 3, "betas 0");
  state.beta1 = 0.999;
  state.beta2 = 0.9999;
  expect_exact_steps(state, 3, "betas near 1");
}

TEST(Adam, SkipLeavesEverything) {
  for (const AdamRule rule : kRules) expect_skip(at::kCPU, rule);
}

// The sign of nothing is nothing, and that of anything else is one.
TEST(Adam, LionMovesByTheRateOrNotAtAll) {
  AdamState state = make_adam({{4}}, at::kCPU, AdamRule::lion);
  state.params[0].fill_(1);
  state.weight_decay = {0.5};
  state.grads[0].copy_(at::tensor({1e-30f, -1e10f, 0.f, -3.f}));
  state.run();
  const double kept = 1 - 1e-2 * 0.5;
  const std::vector<double> expected = {kept - 1e-2, kept + 1e-2, kept, kept + 1e-2};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(state.params[0][i].item<double>(), expected[static_cast<size_t>(i)], 1e-7);
  }
}

TEST(Adam, FirstStepIsBounded) {
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

TEST(Adam, GradientsAreOnlyRead) {
  AdamState state = make_adam({{33}}, at::kCPU);
  set_grads(state, 1);
  state.grad_scale.fill_(0.5);
  const at::Tensor before = state.grads[0].clone();
  state.run();
  expect_same_bits(state.grads[0], before);
}

TEST(Adam, SquaresOfTheRatio) {
  expect_squares(at::kCPU);
}

TEST(Adam, LeavesUnderGradModeAndStaleGraphs) {
  AdamState state = bare(make_adam({{4}}, at::kCPU));
  state.params[0].requires_grad_();
  const at::Tensor loss = state.params[0].square().sum();  // keeps the old values for its backward pass
  set_grads(state, 1);
  state.run();
  EXPECT_TRUE(state.params[0].is_leaf());
  EXPECT_THROW(loss.backward(), c10::Error) << "the graph's weights were changed in place";
}

TEST(Adam, BadInputIsNamed) {
  const AdamState good = make_adam({{2, 3}, {4}, {2}}, at::kCPU);
  const auto message = [&](const std::function<void(AdamState&)>& spoil) {
    AdamState state = good.clone();
    spoil(state);
    return error_of([&] { state.run(); });
  };
  ASSERT_EQ(message([](AdamState&) {}), "");
  expect_message(message([](AdamState& s) { s.grads.pop_back(); }), {"hrm::adam_", "3 params", "2 grads"});
  expect_message(message([](AdamState& s) { s.averages.pop_back(); }), {"hrm::adam_", "3 params", "2 averages"});
  expect_message(message([](AdamState& s) { s.weight_decay.pop_back(); }), {"hrm::adam_", "2 weight decays"});
  expect_message(message([](AdamState& s) { s.lr_factor.pop_back(); }), {"hrm::adam_", "2 rate factors"});
  expect_message(message([](AdamState& s) { s.rule = AdamRule::lion; }), {"hrm::adam_", "rule 2", "3 exp_avg_sqs"});
  expect_message(message([](AdamState& s) { s.rule = AdamRule::muon_apply; }), {"hrm::adam_", "3 exp_avgs"});
  expect_message(message([](AdamState& s) { s.exp_avgs.clear(); }), {"hrm::adam_", "0 exp_avgs"});
  expect_message(message([](AdamState& s) { s.rule = static_cast<AdamRule>(kAdamRules); }),
                 {"hrm::adam_", "no rule 6"});
  expect_message(message([](AdamState& s) { s.grads[1] = at::zeros({5}); }), {"hrm::adam_", "grads[1]", "[5]", "[4]"});
  expect_message(message([](AdamState& s) {
                   s.exp_avgs[0] = at::zeros({3, 2}).t();
                 }),
                 {"hrm::adam_", "exp_avgs[0]", "[2, 3]", "contiguous", "[1, 2]"});
  expect_message(message([](AdamState& s) { s.copies[1] = s.params[1] = s.params[1].to(at::kBFloat16); }),
                 {"hrm::adam_", "params[1]", "BFloat16", "[4]"});
  expect_message(message([](AdamState& s) { s.copies[2] = at::zeros({2}); }),
                 {"hrm::adam_", "copies[2]", "params[2] itself", "Float"});
  expect_message(message([](AdamState& s) { s.lr = at::zeros({1}); }), {"hrm::adam_", "lr", "0-dim", "[1]"});
  expect_message(message([](AdamState& s) { s.skip = at::zeros({}, at::kBool); }), {"hrm::adam_", "skip", "Bool"});
  expect_message(message([](AdamState& s) { s.update_ratio = at::zeros({}); }),
                 {"hrm::adam_", "update_ratio", "Double", "Float"});
  expect_message(message([](AdamState& s) { s.update_ratio = at::zeros({3}, at::kDouble); }),
                 {"hrm::adam_", "update_ratio", "[3]"});
  expect_message(message([](AdamState& s) { s.beta1 = 1; }), {"hrm::adam_", "beta", "1"});
  expect_message(message([](AdamState& s) { s.average_decay = 1; }), {"hrm::adam_", "average_decay", "1"});
}

}  // namespace
}  // namespace hrm::ops
