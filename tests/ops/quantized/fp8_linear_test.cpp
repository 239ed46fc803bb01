#include "ops/quantized/fp8_linear_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8Linear, PairsOfAnySizes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_pair(48, 80, dtype, e5m2, at::kCPU);
      check_pair(7, 13, dtype, e5m2, at::kCPU);
      check_pair(0, 16, dtype, e5m2, at::kCPU);
    }
  }
  check_pair_not_finite(at::kCPU);
}

TEST(Fp8Linear, WeightsAllAtOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_weights({{32, 48}, {16, 16}, {7, 13}, {64, 16}}, dtype, at::kCPU);
  }
  const at::Tensor weight = at::ones({16, 16}), values = at::empty({16, 16}, at::kFloat8_e4m3fn);
  expect_message(error_of([&] {
                   quantize_fp8_weights_({weight}, {values}, {values}, at::ones({2, 8}), at::kFloat);
                 }),
                 {"hrm::quantize_fp8_weights_", "slots must be [1, 8]"});
  expect_message(error_of([&] {
                   quantize_fp8_weights_({weight.t().narrow(0, 0, 8)}, {values}, {values},
                                         make_fp8_wide_slots(1, false, at::kCPU), at::kFloat);
                 }),
                 {"[8, 16]"});
  expect_message(error_of([&] {
                   quantize_fp8_weights_({weight}, {values}, {values}, make_fp8_wide_slots(1, false, at::kCPU),
                                         at::kDouble);
                 }),
                 {"compute must be"});
}

TEST(Fp8Linear, WideSlotsFollowTheirFormat) {
  check_wide_update(at::kCPU);
}

TEST(Fp8Linear, ThreeProductsOfWhatTheValuesStandFor) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_fp8_linear(16, 32, 48, dtype, e5m2, at::kCPU);
      check_fp8_linear(1040, 64, 16, dtype, e5m2, at::kCPU);
    }
  }
}

TEST(Fp8Linear, WhatIsKeptAnywayIsQuantisedAgain) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    check_x_is_kept(48, 32, 64, dtype, at::kCPU);
}

TEST(Fp8Linear, CurrentScalesAreThoseOfTheTensors) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_scale_now(48, 80, dtype, e5m2, at::kCPU);
      check_scale_now(7, 13, dtype, e5m2, at::kCPU);
      check_scale_now(0, 16, dtype, e5m2, at::kCPU);
      check_fp8_linear_now(48, 32, 64, dtype, e5m2, at::kCPU);
    }
  }
  const at::Tensor x = at::ones({16});
  expect_message(error_of([&] { fp8_raise_amax_(x, at::ones({4})); }), {"hrm::fp8_raise_amax_", "8 contiguous"});
  expect_message(error_of([&] { fp8_scale_now(x, wide_slot(1, false, at::kCPU), -1); }), {"margin", "-1"});
  expect_message(error_of([&] { fp8_scale_now(x.to(at::kInt), wide_slot(1, false, at::kCPU), 0); }), {"x must be"});
}

TEST(Fp8Linear, FrozenWeightsAndRowsOfSeveralDimensions) {
  const Fp8LinearCase c = make_fp8_linear(32, 48, 64, at::kBFloat16, true, at::kCPU);
  const at::Tensor x = c.x.view({2, 16, 48}).clone().requires_grad_();
  const at::Tensor y = fp8_linear(x, c.weight, c.x_slot, c.grad_slot, true, c.master, {});
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 16, 64}));
  const Fp8LinearResult want = run_fp8_linear(c);
  expect_same_bits(y.detach().view({32, 64}), want.y, "y");
  const at::Tensor grad = torch::autograd::grad({y}, {x}, {c.grad_y.view({2, 16, 64})})[0];
  expect_same_bits(grad.view({32, 48}), want.grad_x, "gradient of x");
  // Without a gradient the slot of gradients is not touched.
  const at::NoGradGuard no_grad;
  const at::Tensor slot = wide_slot(4096, true, at::kCPU);
  const at::Tensor alone = fp8_linear(c.x, c.weight, c.x_slot, slot, true, c.master, {});
  expect_same_bits(alone, want.y, "without gradient");
  EXPECT_EQ(slot[2].item<float>(), 0);
}

TEST(Fp8Linear, RefusesWhatDoesNotFit) {
  const Fp8LinearCase c = make_fp8_linear(32, 48, 64, at::kBFloat16, true, at::kCPU);
  const auto linear = [&](const at::Tensor& x, const Fp8Weight& weight, const at::Tensor& slot) {
    return error_of([&] { fp8_linear(x, weight, slot, c.grad_slot, true, c.master, {}); });
  };
  expect_message(linear(c.x.narrow(0, 0, 30), c.weight, c.x_slot), {"hrm::fp8_linear", "multiples of 16", "[30, 48]"});
  expect_message(linear(c.x.narrow(1, 0, 32), c.weight, c.x_slot), {"hrm::fp8_linear", "[32, 32]", "[64, 48]"});
  expect_message(linear(c.x, c.weight, at::ones({4})), {"x_slot", "8 contiguous"});
  expect_message(
      linear(c.x, {c.weight.values.view(at::kByte).t().contiguous().t().view(at::kFloat8_e4m3fn), c.weight.slot},
             c.x_slot),
      {"weight must be contiguous", "[1, 64]"});
  expect_message(
      error_of([&] { fp8_linear(c.x, c.weight, c.x_slot, c.grad_slot, true, c.master.clone().requires_grad_(), {}); }),
      {"hrm::fp8_linear", "grad_weight must be given"});
  const at::Tensor g = std::get<0>(quantize_fp8_pair(c.grad_y, c.grad_slot, true));
  expect_message(error_of([&] { fp8_product(g, g, c.grad_slot, c.grad_slot, at::kFloat); }), {"e5m2 by e5m2"});
  expect_message(error_of([&] { quantize_fp8_pair(c.x.view({2, 16, 48}), c.x_slot, false); }), {"matrix"});
}

}  // namespace
}  // namespace hrm::ops
