#include "hrm/ops/rms_norm.h"

#include <ATen/Parallel.h>

#include "ops/norm/rms_norm_cases.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(RmsNorm, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : norm_widths()) {
      const at::Tensor x = normal({5, 3, width}, 1, dtype);
      const at::Tensor residual = normal({5, 3, width}, 2, dtype);
      expect_good_norm(x, residual, cat(dtype, " width ", width));
    }
  }
}

TEST(RmsNorm, SecondGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : norm_widths()) expect_good_second_gradient(dtype, width, at::kCPU);
  }
}

TEST(RmsNorm, ExtremeRows) {
  at::Tensor x = normal({6, 97}, 1, at::kFloat);
  x[0].zero_();      // only eps keeps the factor finite
  x[1].mul_(1e-12);  // far below eps
  x[2].mul_(1e12);   // far above
  x[3][5] = 1e6;     // one element carries the row
  expect_good_norm(x, at::zeros_like(x), "extreme rows");
  EXPECT_EQ(rms_norm_residual(x, at::zeros_like(x), 1e-5)[0].abs().max().item<float>(), 0);
}

TEST(RmsNorm, ReferenceBackendIsTheReference) {
  const at::Tensor x = normal({7, 24}, 1, at::kFloat);
  const at::Tensor residual = normal({7, 24}, 2, at::kFloat);
  const auto expected = reference::rms_norm_residual(x, residual, 1e-5);
  const WithReference with_reference;
  const auto [y, rstd] = rms_norm_residual_forward(x, residual, 1e-5);
  expect_same_bits(y, expected.y);
  expect_same_bits(rstd, expected.rstd);
}

TEST(RmsNorm, LoopsAgreeWithReference) {
  const at::Tensor x = normal({7, 101}, 1, at::kFloat);
  const at::Tensor residual = normal({7, 101}, 2, at::kFloat);
  const auto [y, rstd] = rms_norm_residual_forward(x, residual, 1e-5);
  const auto expected = reference::rms_norm_residual(x, residual, 1e-5);
  // Two orders of a sum of 101 squares, then a square root: a few float32 roundings apart.
  EXPECT_LE(largest_difference(rstd / expected.rstd, at::ones({7})), 4 * 0x1p-23);
  EXPECT_LE(largest_difference(y, expected.y), 4 * 0x1p-23 * expected.y.abs().max().item<double>());
}

TEST(RmsNorm, FiniteDifferencesInFloat64) {
  const at::Tensor x = normal({2, 5}, 1, at::kDouble);
  const at::Tensor residual = normal({2, 5}, 2, at::kDouble);
  const at::Tensor grad_y = normal({2, 5}, 3, at::kDouble);
  const double eps = 1e-2;  // large enough that its share of the gradient is seen
  const NormResult ours = run_norm(rms_norm_residual, x, residual, grad_y, eps);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto loss = [&](double move) {
      at::Tensor moved = x.clone();
      moved.view(-1)[i] += move;
      return (rms_norm_residual(moved, residual, eps) * grad_y).sum().item<double>();
    };
    // Central differences: truncation kStep^2, rounding 1e-16 / kStep.
    EXPECT_NEAR(ours.grad_x.reshape(-1)[i].item<double>(), (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-8) << i;
  }
}

TEST(RmsNorm, NonContiguousInputs) {
  const at::Tensor x = normal({24, 6, 4}, 1, at::kFloat).transpose(0, 2);
  const at::Tensor residual = normal({4, 6, 48}, 2, at::kFloat).slice(2, 0, 48, 2);
  ASSERT_FALSE(x.is_contiguous() || residual.is_contiguous());
  expect_good_norm(x, residual, "strided");
  expect_good_norm(x.to(at::kBFloat16), residual.to(at::kBFloat16), "strided bfloat16");
  expect_same_bits(rms_norm_residual(x, residual, 1e-5),
                   rms_norm_residual(x.contiguous(), residual.contiguous(), 1e-5));

  // A gradient that arrives expanded (from a sum, say) has stride 0.
  const at::Tensor leaf = x.contiguous().requires_grad_();
  const at::Tensor zero = at::zeros_like(x);
  const auto by_sum = torch::autograd::grad({rms_norm_residual(leaf, zero, 1e-5).sum()}, {leaf});
  const auto by_ones = torch::autograd::grad({rms_norm_residual(leaf, zero, 1e-5)}, {leaf}, {at::ones({4, 6, 24})});
  expect_same_bits(by_sum[0], by_ones[0]);
}

TEST(RmsNorm, GradientGoesWhereItIsNeeded) {
  const at::Tensor x = normal({3, 8}, 1, at::kFloat).requires_grad_();
  const at::Tensor residual = normal({3, 8}, 2, at::kFloat);
  const at::Tensor one = rms_norm_residual(x, residual, 1e-5);
  ASSERT_TRUE(one.requires_grad());
  const at::Tensor grad = torch::autograd::grad({one}, {x}, {at::ones({3, 8})})[0];
  // The same tensor twice gets the gradient twice.
  const at::Tensor half = ((x + residual) / 2).detach().requires_grad_();
  const at::Tensor twice = torch::autograd::grad({rms_norm_residual(half, half, 1e-5)}, {half}, {at::ones({3, 8})})[0];
  EXPECT_LE(largest_difference(twice, 2 * grad), 1e-6);

  EXPECT_FALSE(rms_norm_residual(residual, residual, 1e-5).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(rms_norm_residual(x, residual, 1e-5).requires_grad());
}

TEST(RmsNorm, SameBitsForAnyNumberOfThreads) {
  const at::Tensor x = normal({1000, 128}, 1, at::kFloat);
  const at::Tensor residual = normal({1000, 128}, 2, at::kFloat);
  const at::Tensor grad_y = normal({1000, 128}, 3, at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const NormResult one = run_norm(rms_norm_residual, x, residual, grad_y, 1e-5);
  at::set_num_threads(3);
  const NormResult three = run_norm(rms_norm_residual, x, residual, grad_y, 1e-5);
  at::set_num_threads(before);
  expect_same_bits(one.y, three.y);
  expect_same_bits(one.grad_x, three.grad_x);
}

TEST(RmsNorm, EmptyBatch) {
  const at::Tensor x = at::zeros({0, 4, 8}).requires_grad_();
  const at::Tensor y = rms_norm_residual(x, x, 1e-5);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(torch::autograd::grad({y}, {x}, {at::zeros({0, 4, 8})})[0].sizes(), y.sizes());
}

TEST(RmsNorm, BadInputIsNamed) {
  const at::Tensor x = at::zeros({2, 8});
  const auto message = [&](const at::Tensor& a, const at::Tensor& b, double eps) {
    return error_of([&] { rms_norm_residual(a, b, eps); });
  };
  expect_message(message(x, at::zeros({2, 9}), 1e-5), {"hrm::rms_norm_residual", "[2, 8]", "[2, 9]"});
  expect_message(message(x, x.to(at::kBFloat16), 1e-5), {"hrm::rms_norm_residual", "dtype", "BFloat16", "[2, 8]"});
  expect_message(message(x.to(at::kInt), x.to(at::kInt), 1e-5), {"hrm::rms_norm_residual", "floating-point", "Int"});
  expect_message(message(at::zeros({2, 0}), at::zeros({2, 0}), 1e-5), {"hrm::rms_norm_residual", "[2, 0]"});
  expect_message(message(at::zeros({}), at::zeros({}), 1e-5), {"hrm::rms_norm_residual", "(..., D)"});
  expect_message(message(x, x, 0), {"hrm::rms_norm_residual", "eps"});
  expect_message(error_of([&] { rms_norm_backward(x, x, at::zeros({3})); }),
                 {"hrm::rms_norm_backward", "[2, 8]", "[3]"});
}

TEST(RmsNorm, SecondDerivativeIsRefused) {
  const at::Tensor x = normal({2, 4}, 1, at::kFloat).requires_grad_();
  const at::Tensor y = rms_norm_residual(x, x, 1e-5);
  EXPECT_ANY_THROW({
    const auto grad = torch::autograd::grad({y.square().sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
    grad[0].square().sum().backward();
  });
}

}  // namespace
}  // namespace hrm::ops
