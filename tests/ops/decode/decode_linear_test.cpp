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

TEST(DecodeLinear, BadInput) {
  expect_decode_linear_to_name_bad_input(at::kCPU);
}

}  // namespace
}  // namespace hrm::ops
