#include "ops/gpu_testing.h"
#include "ops/inject_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(InjectGpu, BitsOfPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : sum_sizes()) {
      expect_plain_sum(normal({size}, 1, dtype, at::kCUDA), normal({size}, 2, dtype, at::kCUDA), cat(dtype, " ", size));
    }
    expect_plain_sum(normal({4, 6, 3}, 1, dtype, at::kCUDA).transpose(0, 2), normal({3, 6, 4}, 2, dtype, at::kCUDA),
                     cat(dtype, " strided"));
    // In the middle of a 16-byte word.
    const at::Tensor from = normal({2, 5001}, 1, dtype, at::kCUDA);
    expect_plain_sum(from[0].slice(0, 1), from[1].slice(0, 0, 5000), cat(dtype, " misaligned"));
  }
  expect_plain_sum(at::empty({0, 4}, at::kCUDA), at::empty({0, 4}, at::kCUDA), "nothing");
}

TEST(InjectGpu, InfinitiesAndNaNs) {
  HRM_NEEDS_GPU();
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor a = at::tensor({inf, inf, 65000.0, std::nan(""), -0.0}).to(at::kCUDA, at::kHalf);
  const at::Tensor b = at::tensor({1.0, -inf, 65000.0, 1.0, -0.0}).to(at::kCUDA, at::kHalf);
  const at::Tensor ours = inject(a, b), plain = a + b;
  expect_same_bits(at::nan_to_num(ours, 7), at::nan_to_num(plain, 7));
  EXPECT_TRUE(ours.isnan().equal(plain.isnan()));
}

TEST(InjectGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const at::Tensor a = normal({40, 82, 512}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor b = normal({40, 82, 512}, 2, at::kBFloat16, at::kCUDA);
  at::Tensor sum;
  Captured captured([&] { sum = inject(inject(a, b), b); });
  for (uint64_t round = 0; round < 3; ++round) {
    a.copy_(normal(a.sizes(), 10 + round, at::kBFloat16, at::kCUDA));
    captured.replay();
    expect_same_bits(sum, a + b + b, cat("round ", round));
  }
}

}  // namespace
}  // namespace hrm::ops
