#include "hrm/ops/weighted_rms_norm.h"

#include "ops/norm/weighted_rms_norm_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(WeightedRmsNorm, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : weighted_norm_widths()) {
      expect_good_weighted_norm(normal({5, 3, width}, 1, dtype), cat(dtype, " width ", width));
    }
  }
  expect_good_weighted_norm(normal({24, 6, 4}, 1, at::kBFloat16).transpose(0, 2), "strided");
  expect_good_weighted_norm(at::zeros({0, 4, 8}), "empty");
}

TEST(WeightedRmsNorm, FiniteDifferencesInFloat64) {
  const at::Tensor x = normal({2, 5}, 1, at::kDouble), weight = normal({5}, 2, at::kDouble),
                   grad_y = normal({2, 5}, 3, at::kDouble), grad_x = normal({2, 5}, 4, at::kDouble);
  const double eps = 1e-2;  // large enough that its share of the gradient is seen
  const WeightedNormResult ours = run_weighted_norm(weighted_rms_norm_stream, x, weight, grad_y, grad_x, eps);
  constexpr double kStep = 1e-6;
  const auto loss = [&](const at::Tensor& a, const at::Tensor& b) {
    return ((weighted_rms_norm(a, b, eps) * grad_y).sum() + (a * grad_x).sum()).item<double>();
  };
  const auto expect_slope = [&](const at::Tensor& of, const at::Tensor& grad, bool is_x) {
    for (int64_t i = 0; i < of.numel(); ++i) {
      const at::Tensor up = of.clone(), down = of.clone();
      up.view(-1)[i] += kStep;
      down.view(-1)[i] -= kStep;
      const double slope = is_x ? loss(up, weight) - loss(down, weight) : loss(x, up) - loss(x, down);
      EXPECT_NEAR(grad.reshape(-1)[i].item<double>(), slope / (2 * kStep), 1e-8) << i << " of x " << is_x;
    }
  };
  expect_slope(x, ours.grad_x, true);
  expect_slope(weight, ours.grad_weight, false);
}

// Either output may be left out, and the weight may be frozen.
TEST(WeightedRmsNorm, GradientGoesWhereItIsNeeded) {
  const at::Tensor x = normal({3, 8}, 1, at::kFloat).requires_grad_(), g = normal({3, 8}, 2, at::kFloat);
  const at::Tensor weight = normal({8}, 3, at::kFloat);
  const NormedStream out = weighted_rms_norm_stream(x, weight, 1e-5);
  const at::Tensor through_y = torch::autograd::grad({out.y}, {x}, {g}, /*retain_graph=*/true)[0];
  const at::Tensor alone = torch::autograd::grad({weighted_rms_norm(x, weight, 1e-5)}, {x}, {g})[0];
  expect_same_bits(through_y, alone);
  expect_same_bits(torch::autograd::grad({out.x}, {x}, {g}, /*retain_graph=*/true)[0], g);
  const at::Tensor both = torch::autograd::grad({out.y, out.x}, {x}, {g, g})[0];
  EXPECT_LE(largest_difference(both, through_y + g), 1e-6);

  const at::NoGradGuard no_grad;
  const NormedStream without = weighted_rms_norm_stream(x, weight, 1e-5);
  EXPECT_FALSE(without.y.requires_grad());
  EXPECT_TRUE(without.x.is_same(x));
}

TEST(WeightedRmsNorm, BadInputIsNamed) {
  const at::Tensor x = at::zeros({2, 8}), weight = at::ones({8});
  const auto message = [&](const at::Tensor& a, const at::Tensor& b, double eps) {
    return error_of([&] { weighted_rms_norm(a, b, eps); });
  };
  expect_message(message(x, at::ones({9}), 1e-5), {"hrm::weighted_rms_norm", "[2, 8]", "[9]"});
  expect_message(message(x, weight.to(at::kBFloat16), 1e-5), {"hrm::weighted_rms_norm", "BFloat16", "[2, 8]"});
  expect_message(message(x, weight, 0), {"hrm::weighted_rms_norm", "eps"});
  expect_message(error_of([&] { weighted_rms_norm_backward(x, x, at::zeros({3}), weight); }),
                 {"hrm::weighted_rms_norm_backward", "[3]", "[2, 8]"});
  expect_message(error_of([&] {
                   weighted_rms_norm_backward(at::zeros({2, 9}), x, at::zeros({2}), weight);
                 }),
                 {"hrm::weighted_rms_norm_backward", "[2, 9]", "[2, 8]"});
}

}  // namespace
}  // namespace hrm::ops
