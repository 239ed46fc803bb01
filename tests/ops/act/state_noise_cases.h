#pragma once
// Checks of add_state_noise_ that hold on every device.

#include <ATen/ATen.h>

#include "hrm/ops/state_noise.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline at::Tensor noisy(const at::Tensor& z, const std::vector<int64_t>& keys, int64_t segment, double std = 1,
                        int64_t seed = 5) {
  const at::Tensor result = z.clone();
  const auto longs = at::device(z.device()).dtype(at::kLong);
  add_state_noise_(result, at::tensor(keys, at::kLong).to(z.device()), at::full({z.size(0)}, segment, longs), std,
                   seed);
  return result;
}

// Each row's noise depends on its key, the segment, and the seed alone.
inline void expect_noise_by_key(at::Device device, at::ScalarType dtype) {
  const at::Tensor z = normal({3, 5, 7}, 1, dtype, device);
  const at::Tensor got = noisy(z, {4, -1, 9}, 2);
  expect_same_bits(got[1], z[1], "a row without a key");
  expect_same_bits(noisy(z, {4, 9, 9}, 2)[0], got[0], "other rows");
  expect_same_bits(noisy(z.flip(0).contiguous(), {9, -1, 4}, 2).flip(0).contiguous(), got, "another order");
  expect_same_bits(noisy(z, {4, -1, 9}, 2, /*std=*/0), z, "no noise");
  const at::Tensor mixed = z.clone();
  add_state_noise_(mixed, at::tensor({4, -1, 4}, at::kLong).to(device), at::tensor({2, 2, 3}, at::kLong).to(device), 1,
                   5);
  expect_same_bits(mixed[0], got[0], "rows of other segments");
  expect_same_bits(mixed[2], noisy(z, {-1, -1, 4}, 3)[2], "a segment of its own");
  for (const at::Tensor& other : {noisy(z, {5, -1, 9}, 2), noisy(z, {4, -1, 9}, 3), noisy(z, {4, -1, 9}, 2, 1, 6)}) {
    EXPECT_GT(largest_difference(other[0].cpu(), got[0].cpu()), 0.1);
  }
}

// Mean, variance, fourth moment and neighbours of normal numbers; rows do not repeat each other.
inline void expect_normal_numbers(at::Device device) {
  const int64_t each = 40001;
  const at::Tensor e =
      noisy(at::zeros({4, each}, at::device(device)), {0, 1, 2, int64_t{1} << 40}, 65535).to(at::kCPU, at::kDouble);
  const double count = static_cast<double>(e.numel());
  EXPECT_NEAR(e.mean().item<double>(), 0, 4 / std::sqrt(count));
  EXPECT_NEAR(e.square().mean().item<double>(), 1, 6 / std::sqrt(count));
  EXPECT_NEAR(e.pow(4).mean().item<double>(), 3, 40 / std::sqrt(count));
  EXPECT_NEAR((e.narrow(1, 0, each - 1) * e.narrow(1, 1, each - 1)).mean().item<double>(), 0, 4 / std::sqrt(count));
  EXPECT_NEAR((e[0] * e[3]).mean().item<double>(), 0, 8 / std::sqrt(count));
}

}  // namespace hrm::ops::testing
