#include "ops/decode/decode_linear_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(DecodeLinear, AgainstFloat64) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t rows : {0, 1, 5}) expect_good_decode_linear(rows, 24, 7, dtype, at::kCPU);
  }
}

// No kernel here makes anything for the norm.
TEST(DecodeLinear, Ahead) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool gated : {false, true}) {
      expect_good_decode_chain(decode_chain(3, 16, 24, 8, gated, dtype, at::kCPU), false, cat(dtype, " ", gated));
    }
  }
}

TEST(DecodeLinear, Weights8AgainstFloat64) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType format : {at::kFloat8_e4m3fn, at::kChar}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {0, 1, 5}) expect_good_decode_linear8(rows, 24, 7, dtype, format, at::kCPU);
    }
  }
}

TEST(DecodeLinear, AdaptersAgainstFloat64) {
  const at::NoGradGuard no_grad;
  for (const bool bits8 : {false, true}) {
    for (const Around around : kAround) {
      for (const auto& [rank, slices, scale] : {std::tuple<int64_t, int64_t, double>{3, 1, 1}, {8, 3, 0.5}}) {
        DecodeLinearInput in = decode_linear_input(5, 24, 32, around, at::kBFloat16, at::kCPU);
        if (bits8) in = in_8_bits(in, at::kFloat8_e4m3fn);
        in = with_adapter(in, rank, slices, scale);
        expect_good(in, describe(in, around));
      }
    }
  }
}

// What it dequantises into is what was given, and changes nothing.
TEST(DecodeLinear, Workspace) {
  const at::NoGradGuard no_grad;
  const DecodeLinearInput in =
      in_8_bits(decode_linear_input(3, 24, 7, Around::gate, at::kBFloat16, at::kCPU), at::kChar);
  const at::Tensor workspace = at::zeros({14, 24}, in.x.options());
  expect_same_bits(decode_linear(in.x, DecodeWeight(in.weight8, workspace), in.options), in.run());
  expect_same_bits(workspace, in.weight);
}

TEST(DecodeLinear, BadInput) {
  expect_decode_linear_to_name_bad_input(at::kCPU);
  expect_decode_linear_to_name_bad_weights(at::kCPU);
}

}  // namespace
}  // namespace hrm::ops
