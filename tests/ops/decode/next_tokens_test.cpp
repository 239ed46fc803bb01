// The CPU has the reference alone, which tests/tasks/sampling_test.cpp compares with a plain loop.
#include "ops/decode/next_tokens_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(NextTokens, RowsGoOn) {
  expect_rows_to_go_on(at::kCPU);
}

TEST(NextTokens, LongRows) {
  expect_long_rows(at::kFloat, at::kCPU);
}

TEST(NextTokens, BadInput) {
  expect_bad_input_named(at::kCPU);
}

}  // namespace
}  // namespace hrm::ops
