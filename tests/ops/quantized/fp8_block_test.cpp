#include "ops/quantized/fp8_block_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8Block, PartsAreTheirOpsAndThenQuantised) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool flag : {false, true}) {
      check_norm_fp8(48, 80, dtype, flag, at::kCPU);
      check_norm_fp8(7, 13, dtype, flag, at::kCPU);
      check_swiglu_fp8(32, 48, dtype, flag, at::kCPU);
      check_swiglu_fp8(5, 11, dtype, flag, at::kCPU);
      for (const bool rotated : {false, true}) {
        check_qkv_gradient_fp8(2, 8, {4, 2, 16}, dtype, flag, rotated, /*strided=*/rotated, at::kCPU);
        check_qkv_gradient_fp8(3, 5, {3, 1, 6}, dtype, flag, rotated, /*strided=*/flag, at::kCPU);
      }
    }
    check_fp8_residual(32, 48, 64, dtype, at::kCPU);
    check_linear_swiglu(32, 48, 64, dtype, at::kCPU);
  }
}

TEST(Fp8Block, CountsWhatIsClamped) {
  for (const bool e5m2 : {false, true}) {
    check_block_counts(32, 48, at::kFloat, e5m2, at::kCPU);
    check_block_counts(48, 80, at::kBFloat16, e5m2, at::kCPU);
  }
}

TEST(Fp8Block, RefusesWhatDoesNotFit) {
  const at::Tensor x = normal({32, 48}, 1, at::kBFloat16, at::kCPU), weight = at::ones({48});
  const at::Tensor slot = wide_slot(1, false, at::kCPU);
  expect_message(error_of([&] {
                   weighted_rms_norm_fp8(x.view({2, 16, 48}), weight, 1e-5, slot, true);
                 }),
                 {"hrm::weighted_rms_norm_fp8", "x must be a matrix", "[2, 16, 48]"});
  expect_message(error_of([&] { weighted_rms_norm_fp8(x, weight, 1e-5, at::ones({4}), true); }),
                 {"hrm::weighted_rms_norm_fp8", "8 contiguous"});
  expect_message(error_of([&] { weighted_rms_norm_transposed_fp8(x, weight, at::ones({31}), slot); }),
                 {"hrm::weighted_rms_norm_transposed_fp8", "rstd must be 32", "[31]"});
  expect_message(error_of([&] { swiglu_fp8(x.to(at::kDouble), slot); }), {"hrm::swiglu_fp8", "gate_up must be"});
  expect_message(error_of([&] { swiglu_backward_fp8(x, x, slot, true, slot, true, true); }), {"[32, 48]"});
  expect_message(error_of([&] { swiglu_backward_fp8(x.narrow(1, 0, 24), x, slot, true, slot, true, true, -1); }),
                 {"hrm::swiglu_backward_fp8_scale_now", "margin", "-1"});
  expect_message(error_of([&] { swiglu_backward_fp8(x, x, slot, true, slot, true, true, 0); }), {"[32, 48]"});
  const at::Tensor q = normal({2, 16, 4, 16}, 1, at::kBFloat16, at::kCPU);
  expect_message(error_of([&] { qkv_heads_backward_fp8(q, q.narrow(1, 0, 8), q, {}, {}, slot, true, true); }),
                 {"qkv_heads_backward", "[2, 8, 4, 16]"});
  expect_message(
      error_of([&] {
        fp8_linear_swiglu({x.to(at::kFloat8_e5m2), {}, slot}, {x.to(at::kFloat8_e4m3fn), slot}, slot, at::kBFloat16);
      }),
      {"hrm::fp8_linear_swiglu", "must be e4m3"});
  const Fp8LinearCase c = make_fp8_linear(32, 48, 64, at::kBFloat16, true, at::kCPU);
  expect_message(error_of([&] { fp8_linear(c.x, c.weight, c.x_slot, c.grad_slot, true, c.master, {}, {}, c.x); }),
                 {"hrm::fp8_product", "residual must be", "[32, 64]", "[32, 48]"});
}

}  // namespace
}  // namespace hrm::ops
