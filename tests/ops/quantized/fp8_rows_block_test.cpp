#include "ops/quantized/fp8_rows_block_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8RowsBlock, PartsAreTheirOpsAndThenQuantised) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_norm_rows(7, 13, dtype, at::kCPU);
    check_norm_rows(48, 80, dtype, at::kCPU);
    check_swiglu_rows(5, 11, dtype, at::kCPU);
    check_swiglu_rows(48, 80, dtype, at::kCPU);
    for (const bool rotated : {false, true}) {
      for (const bool normed : {false, true}) {
        check_qkv_gradient_rows(2, 7, {4, 2, 16}, dtype, {rotated, normed, rotated}, at::kCPU);
        check_qkv_gradient_rows(3, 5, {3, 1, 6}, dtype, {rotated, normed, normed}, at::kCPU);
      }
    }
  }
}

TEST(Fp8RowsBlock, RefusesWhatDoesNotFit) {
  const at::Tensor x = normal({4, 8}, 1, at::kFloat), ones = at::ones({8});
  const auto norm = [&](const at::Tensor& rows, const at::Tensor& weight) {
    return error_of([&] { weighted_rms_norm_rows(rows, weight, 1e-5, true); });
  };
  expect_message(norm(x, at::ones({7})), {"hrm::weighted_rms_norm", "[4, 8]", "[7]"});
  expect_message(norm(x.unsqueeze(0), ones), {"hrm::weighted_rms_norm_rows", "a matrix", "[1, 4, 8]"});
  const auto gate = [](const at::Tensor& gate_up) { return error_of([&] { swiglu_rows(gate_up, true); }); };
  expect_message(gate(x.narrow(1, 0, 7)), {"hrm::swiglu", "[4, 7]"});
  expect_message(gate(x.flatten()), {"hrm::swiglu_rows", "a matrix", "[32]"});
  expect_message(error_of([&] {
                   swiglu_backward_rows(x, at::cat({x, x}, 1), ones, true);
                 }),
                 {"hrm::swiglu_backward_rows", "16 contiguous float32", "[8]"});
  const at::Tensor heads = x.view({1, 4, 2, 4});
  expect_message(error_of([&] { qkv_heads_backward_rows(heads, heads, heads, {}, {}, ones, true); }),
                 {"hrm::qkv_heads_backward_rows", "24 contiguous float32", "[8]"});
}

TEST(Fp8RowsBlock, TransposedWeights) {
  const Weight8 weight = quantize_weight8(normal({48, 80}, 1, at::kFloat), at::kFloat8_e4m3fn),
                both = with_transposed(weight);
  expect_same_bits(both.transposed.view(at::kByte), weight.values.view(at::kByte).t());
  EXPECT_TRUE(both.ones.eq(1).all().item<bool>());
  EXPECT_EQ(both.bytes(), weight.bytes() + 48 * 80 + 4 * 80);
  const auto [values, scales] = quantize_fp8_rows(normal({33, 48}, 2, at::kBFloat16), weight.scales);
  expect_same_bits(linear_weight8_grad_rows(values, scales, both, {}, at::kBFloat16),
                   linear_weight8_grad_rows(values, scales, weight, {}, at::kBFloat16));
  Weight8 wrong = both;
  wrong.transposed = both.transposed.t();
  expect_message(error_of([&] {
                   linear_weight8_grad_x(at::ones({2, 48}), wrong);
                 }),
                 {"hrm::linear_weight8_grad_x", "transposed", "80 x 48"});
}

TEST(Fp8RowsBlock, WithoutDerivative) {
  const at::Tensor gate_up = normal({4, 8}, 1, at::kFloat).requires_grad_();
  const auto derive = [&] { torch::autograd::grad({swiglu_rows(gate_up, true).wide}, {gate_up}, {at::ones({4, 4})}); };
  EXPECT_ANY_THROW(derive());
}

}  // namespace
}  // namespace hrm::ops
