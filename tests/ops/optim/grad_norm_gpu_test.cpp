#include "hrm/ops/grad_norm.h"

#include "ops/gpu_testing.h"
#include "ops/optim/grad_norm_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GradNormGpu, MatchesFloat64) {
  HRM_NEEDS_GPU();
  expect_norms(at::kCUDA);
  const WithReference with_reference;
  expect_norms(at::kCUDA);
}

TEST(GradNormGpu, SquaresDoNotOverflow) {
  HRM_NEEDS_GPU();
  expect_wide_range(at::kCUDA);
}

TEST(GradNormGpu, SkipAndReport) {
  HRM_NEEDS_GPU();
  expect_outputs(at::kCUDA);
  const WithReference with_reference;
  expect_outputs(at::kCUDA);
}

TEST(GradNormGpu, LossScale) {
  HRM_NEEDS_GPU();
  expect_loss_scale(at::kCUDA);
}

// A NaN anywhere is seen by every norm.
TEST(GradNormGpu, NanAnywhere) {
  HRM_NEEDS_GPU();
  const int64_t size = 40000;
  for (const int64_t place : {int64_t{0}, int64_t{1023}, int64_t{16384}, size - 1}) {
    at::Tensor flat = normal({size}, 1, at::kFloat, at::kCUDA);
    flat[place] = NAN;
    for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(item(std::get<2>(grad_norm(flat, 1, type, {}, {}, {}))), 1) << place << " type " << type;
    }
  }
}

TEST(GradNormGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  at::Tensor flat = normal({70001}, 1, at::kFloat, at::kCUDA);
  at::Tensor skip = scalar(0, at::kCUDA), report = at::zeros({3}, at::device(at::kCUDA).dtype(at::kDouble));
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
  Captured captured([&] { result = grad_norm(flat, 1, 2, {}, skip, report); });
  for (uint64_t step = 1; step <= 3; ++step) {
    flat.copy_(normal({70001}, step, at::kFloat));
    if (step == 3) flat[17] = INFINITY;
    captured.replay();
    const auto [norm, coef, nonfinite] = grad_norm(flat, 1, 2, {}, {}, {});
    expect_same_bits(std::get<0>(result), norm);
    expect_same_bits(std::get<1>(result), coef);
    expect_same_bits(std::get<2>(result), nonfinite);
    EXPECT_EQ(item(skip), step == 3 ? 1 : 0);
    EXPECT_EQ(item(report[0]), item(norm));
  }
}

}  // namespace
}  // namespace hrm::ops
