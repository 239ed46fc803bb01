#include "ops/gpu_testing.h"
#include "ops/sequence/sum_rows_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(SumRowsGpu, AsGoodAsADenseMatrix) {
  HRM_NEEDS_GPU();
  expect_good_sum_rows(at::kCUDA);
}

TEST(SumRowsGpu, SameBitsEachTimeAndInAGraph) {
  HRM_NEEDS_GPU();
  const RowMap map = on(random_row_map(500, 700, 3, 1), at::kCUDA);
  const at::Tensor x = normal({500, 264}, 1, at::kBFloat16, at::kCUDA);
  expect_same_each_time([&] { return std::vector<at::Tensor>{sum_rows(x, map)}; }, 10, "rows");
  at::Tensor got;
  Captured captured([&] { got = sum_rows(x, map); });
  for (uint64_t round = 0; round < 3; ++round) {
    x.copy_(normal({500, 264}, 10 + round, at::kBFloat16));
    map.rows.copy_(random_row_map(500, 700, 3, 2 + round).rows);
    captured.replay();
    expect_same_bits(got, sum_rows(x, map), cat("round ", round));
  }
}

TEST(SumRowsGpu, RowsThatAreNotAligned) {
  HRM_NEEDS_GPU();
  const RowMap map = on(random_row_map(50, 60, 1, 1), at::kCUDA);
  const at::Tensor x = normal({50 * 64 + 1}, 1, at::kBFloat16, at::kCUDA).narrow(0, 1, 50 * 64).view({50, 64});
  expect_same_bits(sum_rows(x, map), sum_rows(x.clone(), map), "one element behind");
}

}  // namespace
}  // namespace hrm::ops
