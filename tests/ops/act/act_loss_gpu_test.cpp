#include "hrm/ops/act_loss.h"

#include "ops/act/act_loss_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ActLossOpGpu, AsByHand) {
  HRM_NEEDS_GPU();
  expect_good_act_losses(at::kCUDA);
}

TEST(ActLossOpGpu, QTarget) {
  HRM_NEEDS_GPU();
  expect_good_q_target(at::kCUDA);
}

TEST(ActLossOpGpu, NaNIsNotHidden) {
  HRM_NEEDS_GPU();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor q = at::tensor({kNan, 0.0F, 0.0F, kNan}).view({2, 2}).cuda();
  const at::Tensor steps = at::ones({2}, at::device(at::kCUDA).dtype(at::kInt));
  EXPECT_TRUE(at::isnan(act_q_target(q, steps, 4)).all().item<bool>());
  ActLossCase c = make_act_loss(2, at::kDouble, true, at::kCUDA);
  c.q = q;
  EXPECT_TRUE(at::isnan(c.run().loss).item<bool>());
}

TEST(ActLossOpGpu, SameBitsEachTimeAndInsideACapturedGraph) {
  HRM_NEEDS_GPU();
  ActLossCase c = make_act_loss(384, at::kDouble, true, at::kCUDA);
  c.tokens.loss.requires_grad_();
  c.q.requires_grad_();
  ActLossSums out;
  at::Tensor grad;
  const at::Tensor one = at::ones_like(c.run().loss).detach();
  const auto run = [&] {
    out = c.run();
    grad = torch::autograd::grad({out.loss}, {c.q}, {one})[0];
  };
  Captured captured(run);
  const ActLossSums held = out;
  const at::Tensor held_grad = grad;
  for (uint64_t round = 0; round < 3; ++round) {
    {
      const at::NoGradGuard no_grad;
      c.q.copy_(normal({384, 2}, 50 + round, at::kFloat));
      c.halted.copy_(c.halted.roll(1));
    }
    captured.replay();
    run();
    expect_same_bits(held.loss.detach(), out.loss.detach());
    expect_same_bits(held.metrics, out.metrics);
    expect_same_bits(held_grad, grad);
  }
}

}  // namespace
}  // namespace hrm::ops
