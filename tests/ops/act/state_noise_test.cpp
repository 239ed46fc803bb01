#include "ops/act/state_noise_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(StateNoise, DependsOnKeySegmentAndSeed) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    expect_noise_by_key(at::kCPU, dtype);
  }
}

TEST(StateNoise, IsNormal) {
  expect_normal_numbers(at::kCPU);
}

// Fixed for ever: an evaluation must find the same answers tomorrow.
TEST(StateNoise, KeepsItsNumbers) {
  const at::Tensor e = noisy(at::zeros({1, 5}), {3}, 1);
  // From the definition, in Python.
  const at::Tensor want = at::tensor({-1.115557, -0.986231, -0.598126, -0.631873, 0.956891}, at::kFloat);
  EXPECT_LT(largest_difference(e[0], want), 1e-5) << e;
}

TEST(StateNoise, BadInputIsNamed) {
  const at::Tensor z = at::ones({2, 3}), segments = at::zeros({2}, at::kLong);
  const auto message = [&](const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std) {
    return error_of([&] { add_state_noise_(z, keys, segments, std, 0); });
  };
  expect_message(message(z, at::zeros({3}, at::kLong), segments, 1), {"hrm::add_state_noise_", "keys", "[3]"});
  expect_message(message(z, at::zeros({2}, at::kInt), segments, 1), {"keys", "Int"});
  expect_message(message(z.t(), at::zeros({3}, at::kLong), segments, 1), {"contiguous"});
  expect_message(message(z, at::zeros({2}, at::kLong), at::zeros({1}, at::kLong), 1), {"segments", "[1]"});
  expect_message(message(z, at::zeros({2}, at::kLong), segments, -1), {"std", "-1"});
}

}  // namespace
}  // namespace hrm::ops
