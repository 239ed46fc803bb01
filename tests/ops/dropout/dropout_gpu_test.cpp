#include "ops/dropout/dropout_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(DropoutGpu, IsTheFormulaWithTheDraws) {
  HRM_NEEDS_GPU();
  expect_good_dropout(at::kCUDA);
}

// A graph draws anew when the step moves on.
TEST(DropoutGpu, Captured) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({33, 64}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor step = at::zeros({}, at::device(at::kCUDA).dtype(at::kLong));
  at::Tensor y;
  Captured captured([&] { y = dropout(x, step, 0.2, 3); });
  for (int64_t i = 0; i < 3; ++i) {
    step.fill_(i);
    captured.replay();
    expect_same_bits(y, dropout(x, step, 0.2, 3), cat("step ", i));
  }
}

}  // namespace
}  // namespace hrm::ops
