#include "hrm/ops/act_loss.h"

#include "ops/act/act_loss_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ActLossOp, AsByHand) {
  expect_good_act_losses(at::kCPU);
}

TEST(ActLossOp, QTarget) {
  expect_good_q_target(at::kCPU);
}

TEST(ActLossOp, EmptyBatch) {
  const ActLossSums out = make_act_loss(0, at::kDouble, true, at::kCPU).run();
  EXPECT_EQ(out.loss.item<double>(), 0);
  EXPECT_EQ(out.metrics.abs().sum().item<double>(), 0);
}

TEST(ActLossOp, BadInputIsNamed) {
  const ActLossCase c = make_act_loss(4, at::kDouble, true, at::kCPU);
  ActLossCase wrong = c;
  wrong.q = at::zeros({4, 3});
  expect_message(error_of([&] { wrong.run(); }), {"hrm::act_loss", "(B, 2)", "[4, 3]"});
  wrong = c;
  wrong.target = at::zeros({5});
  expect_message(error_of([&] { wrong.run(); }), {"hrm::act_loss", "target", "[5]", "[4, 2]"});
  wrong = c;
  wrong.halted = at::zeros({4});
  expect_message(error_of([&] { wrong.run(); }), {"hrm::act_loss", "halted", "Bool", "Float"});
  expect_message(error_of([&] { act_q_target(c.q, c.steps.to(at::kLong), 4); }),
                 {"hrm::act_q_target", "steps", "Int", "Long"});
}

}  // namespace
}  // namespace hrm::ops
