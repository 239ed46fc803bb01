#include "hrm/ops/adam_atan2.h"

#include "ops/adam_atan2_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(AdamAtan2Gpu, FollowsTheEquations) {
  HRM_NEEDS_GPU();
  expect_exact_steps(make_adam(adam_shapes(), at::kCUDA), 4, "cuda");
}

TEST(AdamAtan2Gpu, OtherBetasAndManySteps) {
  HRM_NEEDS_GPU();
  AdamState state = make_adam({{40}, {7, 3}}, at::kCUDA);
  state.beta1 = 0;
  state.beta2 = 0;
  expect_exact_steps(state.clone(), 3, "betas 0");
  state.beta1 = 0.999;
  state.beta2 = 0.9999;
  expect_exact_steps(state.clone(), 20, "betas near 1");
}

TEST(AdamAtan2Gpu, ReferenceBackendAgrees) {
  HRM_NEEDS_GPU();
  const AdamState start = make_adam(adam_shapes(), at::kCUDA);
  AdamState fused = start.clone(), plain = start.clone();
  for (int64_t t = 1; t <= 3; ++t) {
    set_grads(fused, t);
    set_grads(plain, t);
    fused.run();
    const WithReference with_reference;
    plain.run();
  }
  for (size_t i = 0; i < start.params.size(); ++i) {
    EXPECT_LE(largest_difference(fused.params[i], plain.params[i]), 2e-6) << i;
  }
  EXPECT_EQ(plain.step.item<float>(), 3);
}

TEST(AdamAtan2Gpu, SkipLeavesEverything) {
  HRM_NEEDS_GPU();
  expect_skip(at::kCUDA);
  const WithReference with_reference;
  expect_skip(at::kCUDA);
}

// Tensors that start in the middle of a 16-byte word take the element-wise path; the arithmetic is the same.
TEST(AdamAtan2Gpu, MisalignedTensors) {
  HRM_NEEDS_GPU();
  const AdamState aligned = make_adam({{40001}, {5}}, at::kCUDA);
  for (int which = 0; which < 4; ++which) {
    AdamState straight = aligned.clone(), shifted = aligned.clone();
    set_grads(straight, 1);
    set_grads(shifted, 1);
    auto& list = which == 0   ? shifted.params
                 : which == 1 ? shifted.grads
                 : which == 2 ? shifted.exp_avgs
                              : shifted.exp_avg_sqs;
    for (at::Tensor& tensor : list) {
      at::Tensor room = at::empty({tensor.numel() + 1}, tensor.options()).slice(0, 1);
      room.copy_(tensor);
      tensor = room;
    }
    straight.run();
    shifted.run();
    for (size_t i = 0; i < 2; ++i) expect_same_bits(shifted.params[i], straight.params[i], cat("list ", which));
  }
}

TEST(AdamAtan2Gpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  const AdamState start = make_adam(adam_shapes(), at::kCUDA);
  AdamState first = start.clone(), second = start.clone();
  for (int64_t t = 1; t <= 2; ++t) {
    for (AdamState* state : {&first, &second}) {
      set_grads(*state, t);
      state->run();
    }
  }
  for (size_t i = 0; i < start.params.size(); ++i) expect_same_bits(first.params[i], second.params[i]);
}

TEST(AdamAtan2Gpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const AdamState start = make_adam(adam_shapes(), at::kCUDA);
  AdamState graphed = start.clone(), eager = start.clone();
  Captured captured([&] { graphed.run(); });
  // The warm-up took three steps; capturing itself runs nothing. Start again from the same state.
  for (size_t i = 0; i < start.params.size(); ++i) {
    graphed.params[i].copy_(start.params[i]);
    graphed.exp_avgs[i].zero_();
    graphed.exp_avg_sqs[i].zero_();
  }
  graphed.step.zero_();
  for (int64_t t = 1; t <= 6; ++t) {
    for (AdamState* state : {&graphed, &eager}) {
      set_grads(*state, t);
      state->lr.fill_(1e-2 / static_cast<double>(t));
      state->grad_scale.fill_(t == 2 ? 0.5 : 1.0);
      state->skip.fill_(t == 4 ? 1.0 : 0.0);
    }
    captured.replay();
    eager.run();
    ASSERT_EQ(graphed.step.item<float>(), eager.step.item<float>());
    for (size_t i = 0; i < start.params.size(); ++i) {
      expect_same_bits(graphed.params[i], eager.params[i], cat("step ", t, " tensor ", i));
    }
  }
  EXPECT_EQ(graphed.step.item<float>(), 5) << "one of six steps was left out";
}

TEST(AdamAtan2Gpu, MixedDevicesAreRefused) {
  HRM_NEEDS_GPU();
  AdamState state = make_adam({{2, 3}}, at::kCUDA);
  state.lr = scalar(1e-2);
  expect_message(error_of([&] { state.run(); }), {"hrm::adam_atan2_", "lr", "cuda", "cpu"});
  state = make_adam({{2, 3}}, at::kCUDA);
  state.grads[0] = state.grads[0].cpu();
  expect_message(error_of([&] { state.run(); }), {"hrm::adam_atan2_", "grads[0]", "cuda", "cpu", "[2, 3]"});
}

}  // namespace
}  // namespace hrm::ops
