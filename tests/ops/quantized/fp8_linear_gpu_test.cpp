#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_linear_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8LinearGpu, PairsOfAnySizes) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_pair(48, 80, dtype, e5m2, at::kCUDA);
      check_pair(1040, 272, dtype, e5m2, at::kCUDA);
      check_pair(7, 13, dtype, e5m2, at::kCUDA);
      check_pair(129, 131, dtype, e5m2, at::kCUDA);
      check_pair(0, 16, dtype, e5m2, at::kCUDA);
    }
  }
  check_pair_not_finite(at::kCUDA);
  check_wide_update(at::kCUDA);
}

// More weights than one launch takes, and sizes that the kernels do not.
TEST(Fp8LinearGpu, WeightsAllAtOnce) {
  HRM_NEEDS_GPU();
  std::vector<std::vector<int64_t>> sizes;
  for (int64_t i = 0; i < 150; ++i) sizes.push_back({16 * (i % 9 + 1), 16 * (i % 14 + 1)});
  sizes.push_back({2304, 768});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_weights(sizes, dtype, at::kCUDA);
    check_weights({{32, 48}, {16, 16}, {7, 13}}, dtype, at::kCUDA);
  }
}

TEST(Fp8LinearGpu, ThreeProductsOfWhatTheValuesStandFor) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_fp8_linear(16, 32, 48, dtype, e5m2, at::kCUDA);
      check_fp8_linear(1040, 64, 16, dtype, e5m2, at::kCUDA);
      check_fp8_linear(4096, 768, 2048, dtype, e5m2, at::kCUDA);
      check_fp8_linear(512, 4096, 256, dtype, e5m2, at::kCUDA);
    }
  }
}

TEST(Fp8LinearGpu, WhatIsKeptAnywayIsQuantisedAgain) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_x_is_kept(1040, 256, 512, dtype, at::kCUDA);
  }
}

TEST(Fp8LinearGpu, CurrentScalesAreThoseOfTheTensors) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_scale_now(48, 80, dtype, e5m2, at::kCUDA);
      check_scale_now(1040, 272, dtype, e5m2, at::kCUDA);
      check_scale_now(7, 13, dtype, e5m2, at::kCUDA);
      check_scale_now(129, 131, dtype, e5m2, at::kCUDA);
      check_scale_now(0, 16, dtype, e5m2, at::kCUDA);
      check_fp8_linear_now(1040, 256, 512, dtype, e5m2, at::kCUDA);
    }
  }
}

// Behind 64 large terms of a sum, tensor cores lose small ones: 64 of them in the first 128 terms, and all 16,320 if
// the sum did not leave them on the way.
TEST(Fp8LinearGpu, LongSumsAreExact) {
  HRM_NEEDS_GPU();
  constexpr int64_t kTerms = 16384;
  const at::Tensor a = at::full({16, kTerms}, 1.0, at::device(at::kCUDA).dtype(at::kFloat)), b = a.clone();
  a.narrow(1, 0, 64).fill_(448);
  const at::Tensor slot = wide_slot(1, false, at::kCUDA);
  const at::Tensor left = a.to(at::kFloat8_e4m3fn), right = b.to(at::kFloat8_e4m3fn);
  const double want = 64 * 448 + kTerms - 64;
  const at::Tensor product = fp8_product(left, right, slot, slot, at::kFloat);
  EXPECT_LE((product - want).abs().max().item<double>(), 100);
  const at::Tensor grad = at::zeros({16, 16}, a.options());
  fp8_accumulate_(grad, left, right, slot, slot);
  fp8_accumulate_(grad, left, right, slot, slot);
  EXPECT_LE((grad - 2 * want).abs().max().item<double>(), 200);
}

TEST(Fp8LinearGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  const Fp8LinearCase c = make_fp8_linear(1024, 256, 512, at::kBFloat16, true, at::kCUDA);
  const Fp8LinearResult want = run_fp8_linear(c);
  const at::Tensor x = c.x.detach().clone().requires_grad_(), master = c.master.detach().clone().requires_grad_();
  const at::Tensor grad = at::empty_like(c.master);
  at::Tensor y, grad_x;
  Captured captured([&] {
    grad.fill_(0.5);
    y = fp8_linear(x, c.weight, c.x_slot, c.grad_slot, c.e5m2, master, grad);
    grad_x = torch::autograd::grad({y}, {x}, {c.grad_y})[0];
  });
  captured.replay();
  expect_same_bits(y.detach(), want.y, "y");
  expect_same_bits(grad_x, want.grad_x, "gradient of x");
  expect_same_bits(grad, want.grad_weight, "gradient of weight");
}

}  // namespace
}  // namespace hrm::ops
