#include "ops/decode/next_tokens_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(NextTokensGpu, TokensOfTheReference) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    expect_tokens_of_reference(dtype, at::kCUDA);
}

TEST(NextTokensGpu, RowsOfTheReference) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    expect_rows_of_reference(dtype, at::kCUDA);
  }
}

TEST(NextTokensGpu, RowsGoOn) {
  HRM_NEEDS_GPU();
  expect_rows_to_go_on(at::kCUDA);
}

TEST(NextTokensGpu, LongRows) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_long_rows(dtype, at::kCUDA);
}

TEST(NextTokensGpu, BadInput) {
  HRM_NEEDS_GPU();
  expect_bad_input_named(at::kCUDA);
}

TEST(NextTokensGpu, ARowAloneGivesTheSameToken) {
  HRM_NEEDS_GPU();
  const at::Tensor logits = normal({40, 3001}, 1, at::kBFloat16, at::kCUDA), draws = draws_for(40, 2, at::kCUDA);
  for (const SamplingOptions& options : sampling_cases()) {
    const at::Tensor together = sample_tokens(logits, options, draws);
    for (const int64_t row : {0, 17, 39}) {
      expect_same_bits(sample_tokens(logits.narrow(0, row, 1), options, draws.narrow(0, row, 1)),
                       together.narrow(0, row, 1), cat(name_of(options), ", row ", row));
    }
  }
}

TEST(NextTokensGpu, Captured) {
  HRM_NEEDS_GPU();
  const SamplingOptions options{.temperature = 0.8, .top_k = 30, .top_p = 0.9};
  const WrittenRows rows = written_rows(9, 20, at::kCUDA);
  const at::Tensor logits = normal({9, 300}, 1, at::kBFloat16, at::kCUDA);
  Captured captured([&] { next_tokens_(logits, options, rows); });
  rows.active.fill_(true);
  rows.count.zero_();
  rows.limits.fill_(15);
  for (uint64_t seed = 10; seed < 20; ++seed) {
    logits.copy_(normal({9, 300}, seed, at::kBFloat16, at::kCUDA));
    const WrittenRows eager = copy_of(rows);
    next_tokens_(logits, options, eager);
    captured.replay();
    expect_same_rows(rows, eager, cat("seed ", seed));
  }
}

}  // namespace
}  // namespace hrm::ops
