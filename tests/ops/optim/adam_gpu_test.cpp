#include "hrm/ops/adam.h"

#include "ops/gpu_testing.h"
#include "ops/optim/adam_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(AdamGpu, FollowsTheEquations) {
  HRM_NEEDS_GPU();
  for (const AdamRule rule : kRules) {
    expect_exact_steps(make_adam(adam_shapes(), at::kCUDA, rule), 4, "cuda");
    expect_exact_steps(make_adam({{40}, {7, 3}, {5000}}, at::kCUDA, rule, at::kHalf), 4, "float16 copies");
    expect_exact_steps(bare(make_adam(adam_shapes(), at::kCUDA, rule)), 4, "nothing beside");
  }
}

TEST(AdamGpu, OtherBetasAndManySteps) {
  HRM_NEEDS_GPU();
  AdamState state = make_adam({{40}, {7, 3}}, at::kCUDA);
  state.beta1 = 0;
  state.beta2 = 0;
  expect_exact_steps(state.clone(), 3, "betas 0");
  state.beta1 = 0.999;
  state.beta2 = 0.9999;
  expect_exact_steps(state.clone(), 20, "betas near 1");
}

TEST(AdamGpu, BothKindsOfCopiesAtOnce) {
  HRM_NEEDS_GPU();
  AdamState state = make_adam({{40}, {7, 3}, {300}, {20}}, at::kCUDA);
  state.copies[1] = state.params[1].to(at::kHalf);
  state.copies[3] = state.params[3].to(at::kHalf);
  expect_exact_steps(state, 2, "bfloat16 and float16");
}

TEST(AdamGpu, ReferenceBackendAgrees) {
  HRM_NEEDS_GPU();
  for (const AdamRule rule : kRules) {
    const AdamState start = make_adam(adam_shapes(), at::kCUDA, rule);
    AdamState fused = start.clone(), plain = start.clone();
    for (int64_t t = 1; t <= 3; ++t) {
      set_grads(fused, t);
      set_grads(plain, t);
      fused.run();
      const WithReference with_reference;
      plain.run();
      const double ratio = plain.update_ratio.item<double>();
      EXPECT_NEAR(fused.update_ratio.item<double>(), ratio, 1e-6 * std::max(1.0, ratio));
    }
    for (size_t i = 0; i < start.params.size(); ++i) {
      if (start.params[i].numel() == 0) continue;
      // sgd and muon's rules follow gradients of 1e8, and so does what rounding leaves of them.
      const bool follows = rule == AdamRule::sgd || rule == AdamRule::muon_direction || rule == AdamRule::muon_apply;
      const double size = follows ? std::max(1.0, plain.params[i].abs().max().item<double>()) : 1;
      EXPECT_LE(largest_difference(fused.params[i], plain.params[i]), 2e-6 * size) << i;
      EXPECT_LE(largest_difference(fused.averages[i], plain.averages[i]), 2e-6 * size) << i;
    }
    EXPECT_EQ(plain.step.item<float>(), 3);
  }
}

TEST(AdamGpu, SkipLeavesEverything) {
  HRM_NEEDS_GPU();
  for (const AdamRule rule : kRules) {
    expect_skip(at::kCUDA, rule);
    const WithReference with_reference;
    expect_skip(at::kCUDA, rule);
  }
}

TEST(AdamGpu, SquaresOfTheRatio) {
  HRM_NEEDS_GPU();
  expect_squares(at::kCUDA);
}

// Tensors that start in the middle of a 16-byte word take the element-wise path; the arithmetic is the same.
TEST(AdamGpu, MisalignedTensors) {
  HRM_NEEDS_GPU();
  const AdamState aligned = make_adam({{40001}, {5}, {4096}}, at::kCUDA);
  for (int which = 0; which < 6; ++which) {
    AdamState straight = aligned.clone(), shifted = aligned.clone();
    set_grads(straight, 1);
    set_grads(shifted, 1);
    auto* list = std::array{&shifted.params,      &shifted.grads,    &shifted.exp_avgs,
                            &shifted.exp_avg_sqs, &shifted.averages, &shifted.copies}[static_cast<size_t>(which)];
    for (size_t i = 0; i < list->size(); ++i) {
      at::Tensor& tensor = (*list)[i];
      const bool same = shifted.copies[i].is_same(shifted.params[i]);
      at::Tensor room = at::empty({tensor.numel() + 1}, tensor.options()).slice(0, 1);
      room.copy_(tensor);
      tensor = room;
      if (same) shifted.copies[i] = shifted.params[i];
    }
    straight.run();
    shifted.run();
    for (size_t i = 0; i < 3; ++i) {
      expect_same_bits(shifted.params[i], straight.params[i], cat("list ", which));
      expect_same_bits(shifted.averages[i], straight.averages[i], cat("averages, list ", which));
      expect_same_bits(shifted.copies[i], straight.copies[i], cat("copies, list ", which));
    }
  }
}

TEST(AdamGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  const AdamState start = make_adam(adam_shapes(), at::kCUDA);
  AdamState first = start.clone(), second = start.clone();
  for (int64_t t = 1; t <= 2; ++t) {
    for (AdamState* state : {&first, &second}) {
      set_grads(*state, t);
      state->run();
    }
  }
  const auto a = first.written(), b = second.written();
  for (size_t i = 0; i < a.size(); ++i) expect_same_bits(a[i], b[i], cat("tensor ", i));
}

TEST(AdamGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const AdamRule rule : kRules) {
    const AdamState start = make_adam(adam_shapes(), at::kCUDA, rule);
    AdamState graphed = start.clone(), eager = start.clone();
    Captured captured([&] { graphed.run(); });
    // The warm-up took three steps; capturing itself runs nothing. Start again from the same state.
    const auto from = start.written(), to = graphed.written();
    for (size_t i = 0; i < from.size(); ++i) at::Tensor(to[i]).copy_(from[i]);
    for (int64_t t = 1; t <= 6; ++t) {
      for (AdamState* state : {&graphed, &eager}) {
        set_grads(*state, t);
        state->lr.fill_(1e-2 / static_cast<double>(t));
        state->grad_scale.fill_(t == 2 ? 0.5 : 1.0);
        state->skip.fill_(t == 4 ? 1.0 : 0.0);
      }
      captured.replay();
      eager.run();
      const auto a = graphed.written(), b = eager.written();
      for (size_t i = 0; i < a.size(); ++i) expect_same_bits(a[i], b[i], cat("step ", t, " tensor ", i));
    }
    EXPECT_EQ(graphed.step.item<float>(), 5) << "one of six steps was left out";
  }
}

TEST(AdamGpu, MixedDevicesAreRefused) {
  HRM_NEEDS_GPU();
  AdamState state = make_adam({{2, 3}}, at::kCUDA);
  state.lr = scalar(1e-2);
  expect_message(error_of([&] { state.run(); }), {"hrm::adam_", "lr", "cuda", "cpu"});
  state = make_adam({{2, 3}}, at::kCUDA);
  state.grads[0] = state.grads[0].cpu();
  expect_message(error_of([&] { state.run(); }), {"hrm::adam_", "grads[0]", "cuda", "cpu", "[2, 3]"});
}

}  // namespace
}  // namespace hrm::ops
