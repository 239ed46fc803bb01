#include "hrm/ops/grad_norm.h"

#include "ops/optim/grad_norm_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GradNorm, MatchesFloat64) {
  expect_norms(at::kCPU);
}

TEST(GradNorm, SquaresDoNotOverflow) {
  expect_wide_range(at::kCPU);
}

TEST(GradNorm, SkipAndReport) {
  expect_outputs(at::kCPU);
}

TEST(GradNorm, LossScale) {
  expect_loss_scale(at::kCPU);
}

TEST(GradNorm, BadInputIsNamed) {
  const at::Tensor flat = at::zeros({4});
  const auto message = [&](const at::Tensor& vector, double max_norm, double type, const at::Tensor& skip,
                           const at::Tensor& report) {
    return error_of([&] { grad_norm(vector, max_norm, type, {}, skip, report); });
  };
  const at::Tensor skip = scalar(0), report = at::zeros({3}, at::kDouble);
  ASSERT_EQ(message(flat, 1, 2, skip, report), "");
  expect_message(message(at::zeros({2, 2}), 1, 2, skip, report), {"hrm::grad_norm", "vector", "[2, 2]"});
  expect_message(message(at::zeros({0}), 1, 2, skip, report), {"hrm::grad_norm", "[0]"});
  expect_message(message(flat.to(at::kDouble), 1, 2, skip, report), {"hrm::grad_norm", "Double"});
  expect_message(message(flat, -1, 2, skip, report), {"hrm::grad_norm", "max_norm", "-1"});
  expect_message(message(flat, 1, 3, skip, report), {"hrm::grad_norm", "norm_type", "3"});
  expect_message(message(flat, 1, 2, at::zeros({1}), report), {"hrm::grad_norm", "skip", "[1]"});
  expect_message(message(flat, 1, 2, skip, at::zeros({3})), {"hrm::grad_norm", "report", "Float"});
}

}  // namespace
}  // namespace hrm::ops
