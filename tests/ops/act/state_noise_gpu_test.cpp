#include "ops/act/state_noise_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(StateNoiseGpu, DependsOnKeySegmentAndSeed) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_noise_by_key(at::kCUDA, dtype);
}

TEST(StateNoiseGpu, IsNormal) {
  HRM_NEEDS_GPU();
  expect_normal_numbers(at::kCUDA);
}

TEST(StateNoiseGpu, IsThatOfTheCpu) {
  HRM_NEEDS_GPU();
  const std::vector<int64_t> keys{7, -1, 123456789012};
  const at::Tensor z = normal({3, 4099}, 2, at::kFloat);
  EXPECT_LT(largest_difference(noisy(z.to(at::kCUDA), keys, 9).cpu(), noisy(z, keys, 9)), 1e-5);
}

// A graph draws anew when the segment moves on.
TEST(StateNoiseGpu, Captured) {
  HRM_NEEDS_GPU();
  const auto longs = at::device(at::kCUDA).dtype(at::kLong);
  const at::Tensor z = at::zeros({2, 33}, at::kCUDA), keys = at::arange(2, longs), segments = at::zeros({2}, longs);
  Captured captured([&] {
    z.zero_();
    add_state_noise_(z, keys, segments, 1, 5);
    segments.add_(1);
  });
  segments.zero_();
  for (int64_t i = 0; i < 3; ++i) {
    captured.replay();
    expect_same_bits(z, noisy(at::zeros_like(z), {0, 1}, i), cat("segment ", i));
  }
}

}  // namespace
}  // namespace hrm::ops
