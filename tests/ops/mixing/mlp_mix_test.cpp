#include "hrm/ops/mlp_mix.h"

#include "ops/mixing/mlp_mix_cases.h"
#include "ops/mixing/mlp_mix_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(MlpMix, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const MixSizes& sizes : std::vector<MixSizes>{{3, 97, 16, 64}, {4, 3, 9, 2}, {5, 12, 3, 7}, {0, 5, 8, 4}}) {
      expect_good_mix(make_mix(sizes, dtype, at::kCPU), name_of(sizes, dtype));
    }
  }
}

TEST(MlpMix, FiniteDifferencesInFloat64) {
  const double eps = 1e-2;  // large enough that its share of the gradient is seen
  MixCase c = make_mix({2, 5, 3, 4}, at::kDouble, at::kCPU);
  const MixResult ours = run_mix(c, eps);
  const auto check = [&](at::Tensor& variable, const at::Tensor& gradient, const char* name) {
    const at::NoGradGuard no_grad;
    constexpr double kStep = 1e-6;
    auto values = variable.view(-1), expected = gradient.reshape(-1);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double before = values[i].item<double>();
      const auto loss = [&](double value) {
        values[i] = value;
        return (mlp_mix(c.h, c.gate_up, c.down, eps) * c.grad_y).sum().item<double>();
      };
      const double slope = (loss(before + kStep) - loss(before - kStep)) / (2 * kStep);
      values[i] = before;
      EXPECT_NEAR(expected[i].item<double>(), slope, 1e-7) << name << " " << i;
    }
  };
  check(c.h, ours.grad_h, "h");
  check(c.gate_up, ours.grad_gate_up, "gate_up");
  check(c.down, ours.grad_down, "down");
}

TEST(MlpMix, NonContiguousInput) {
  MixCase c = make_mix({2, 7, 6, 8}, at::kFloat, at::kCPU);
  const MixResult expected = run_mix(c);
  c.h = c.h.transpose(1, 2).contiguous().transpose(1, 2);
  c.grad_y = c.grad_y.transpose(0, 2).contiguous().transpose(0, 2);
  const MixResult ours = run_mix(c);
  // The library may choose another order of summation for another layout.
  EXPECT_LE(largest_difference(ours.y, expected.y), 1e-5);
  EXPECT_LE(largest_difference(ours.grad_h, expected.grad_h), 1e-5);
  EXPECT_LE(largest_difference(ours.grad_gate_up, expected.grad_gate_up), 1e-5);
  EXPECT_LE(largest_difference(ours.grad_down, expected.grad_down), 1e-5);
}

TEST(MlpMix, AFrozenWeightGetsNoGradient) {
  const MixCase c = make_mix({2, 7, 6, 8}, at::kFloat, at::kCPU);
  const at::Tensor gate_up = c.gate_up.clone(), down = c.down.clone().requires_grad_();
  const at::Tensor y = mlp_mix(c.h, gate_up, down.detach(), gate_up, down, kMixEps);
  y.backward(c.grad_y);
  EXPECT_FALSE(gate_up.grad().defined());
  const MixResult exact = run_plain_mix(c, at::kDouble);
  EXPECT_LE(largest_difference(down.grad(), exact.grad_down), 1e-4);
}

TEST(MlpMix, HasNoSecondDerivativeAndTheBareOpHasNone) {
  const MixCase c = make_mix({2, 7, 6, 8}, at::kFloat, at::kCPU);
  const at::Tensor h = c.h.clone().requires_grad_();
  const at::Tensor y = mlp_mix(h, c.gate_up, c.down, c.gate_up, c.down, kMixEps);
  expect_message(
      error_of([&] { torch::autograd::grad({y}, {h}, {c.grad_y}, /*retain_graph=*/true, /*create_graph=*/true); }),
      {"hrm::mlp_mix has no second derivative"});
  const at::Tensor bare = mlp_mix(h, c.gate_up, c.down, kMixEps);
  expect_message(error_of([&] { bare.backward(c.grad_y); }), {"hrm::mlp_mix"});
}

TEST(MlpMix, BadInput) {
  const at::Tensor h = at::zeros({2, 7, 6}), gate_up = at::zeros({16, 7}), down = at::zeros({7, 8});
  expect_message(error_of([&] {
                   mlp_mix(h, gate_up, at::zeros({6, 8}), 1e-5);
                 }),
                 {"hrm::mlp_mix", "[2, 7, 6]", "[16, 7]", "[6, 8]"});
  expect_message(error_of([&] { mlp_mix(h, gate_up.to(at::kDouble), down, 1e-5); }),
                 {"hrm::mlp_mix", "dtype", "Float", "Double"});
  expect_message(error_of([&] { mlp_mix(h, gate_up, down, 0); }), {"hrm::mlp_mix", "eps"});
  const at::Tensor rstd = at::zeros({2, 6});
  const auto backward = [&](const at::Tensor& grad_y, const at::Tensor& rstd_, const at::Tensor& grad_gate_up) {
    mlp_mix_backward(grad_y, h, h, rstd_, gate_up, down, grad_gate_up, at::zeros_like(down));
  };
  expect_message(error_of([&] {
                   backward(at::zeros({2, 7, 5}), rstd, gate_up);
                 }),
                 {"hrm::mlp_mix_backward", "[2, 7, 5]", "[2, 7, 6]"});
  expect_message(error_of([&] { backward(h, rstd.to(at::kDouble), gate_up); }), {"hrm::mlp_mix_backward", "rstd"});
  expect_message(error_of([&] {
                   backward(h, rstd, at::zeros({16, 7}, at::kBFloat16));
                 }),
                 {"hrm::mlp_mix_backward", "grad_weight_gate_up", "BFloat16"});
}

}  // namespace
}  // namespace hrm::ops
