#pragma once
// Checks of damped_update and start_state_ that hold on every device.

#include <ATen/ATen.h>

#include "hrm/ops/damped_update.h"
#include "hrm/ops/start_state.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline at::Tensor draws_on(at::Device device, const std::vector<int64_t>& draws) {
  return at::tensor(draws, at::kLong).to(device);
}

inline at::Tensor moved(const at::Tensor& update, const at::Tensor& state, const std::vector<int64_t>& draws,
                        int64_t number = 0, double damping = 0.25, double std = 0.5, int64_t seed = 5) {
  return damped_update(update, state, draws_on(update.device(), draws), number, damping, std, seed);
}

inline void expect_damped_sum(at::Device device, at::ScalarType dtype) {
  const at::Tensor update = normal({3, 5, 7}, 1, dtype, device), state = normal({3, 5, 7}, 2, dtype, device);
  const at::Tensor wide = update.to(at::kFloat) * 0.75f + state.to(at::kFloat) * 0.25f;
  const at::Tensor got = damped_update(update, state, std::nullopt, 0, 0.25, 0, 0);
  EXPECT_EQ(got.scalar_type(), dtype);
  const double unit = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-23;
  EXPECT_LT(largest_difference(got.to(at::kFloat), wide), 8 * unit);
  expect_same_bits(damped_update(update, state, std::nullopt, 0, 0, 0, 0), update, "neither damping nor noise");
}

// Each row's noise depends on its draw, the number of the update, and the seed alone.
inline void expect_path_noise_by_draw(at::Device device, at::ScalarType dtype) {
  const at::Tensor update = normal({3, 5, 7}, 1, dtype, device), state = normal({3, 5, 7}, 2, dtype, device);
  const at::Tensor got = moved(update, state, {4, 70000, 9}, 2);
  expect_same_bits(moved(update, state, {4, 9, 9}, 2)[0], got[0], "other rows");
  expect_same_bits(moved(update, state, {6, 70002, 11}, 0), got, "the number counts from the draw");
  for (const at::Tensor& other : {moved(update, state, {5, 70000, 9}, 2), moved(update, state, {4, 70000, 9}, 3),
                                  moved(update, state, {4, 70000, 9}, 2, 0.25, 0.5, 6)}) {
    EXPECT_GT(largest_difference(other[0].cpu(), got[0].cpu()), 0.1);
  }
  // Its size, and that no update repeats another.
  const at::Tensor zeros = at::zeros({2, 40001}, at::device(device));
  const at::Tensor e = moved(zeros, zeros, {3, 4}, 0, 0, 0.5).to(at::kCPU, at::kDouble);
  EXPECT_NEAR(e.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(e.square().mean().item<double>(), 0.25, 0.01);
  EXPECT_NEAR((e[0] * e[1]).mean().item<double>(), 0, 0.01);
}

inline at::Tensor started(const at::Tensor& z, const std::vector<bool>& fresh, const std::vector<int64_t>& draws,
                          int64_t number = 0, double std = 1, int64_t seed = 5) {
  const at::Tensor result = z.clone(), mask = at::zeros({z.size(0)}, at::kBool);
  for (size_t i = 0; i < fresh.size(); ++i) mask[static_cast<int64_t>(i)] = fresh[i];
  start_state_(result, mask.to(z.device()), draws_on(z.device(), draws), number, std, seed);
  return result;
}

inline void expect_starts_by_draw(at::Device device, at::ScalarType dtype) {
  const at::Tensor z = normal({3, 5, 7}, 1, dtype, device);
  const at::Tensor got = started(z, {true, false, true}, {4, 5, 1LL << 50});
  expect_same_bits(got[1], z[1], "a row that does not start");
  expect_same_bits(started(normal({3, 5, 7}, 2, dtype, device), {true, true, true}, {4, 4, 4})[0], got[0],
                   "what stood there, and other rows");
  for (const at::Tensor& other :
       {started(z, {true}, {5, 5, 5}), started(z, {true}, {4, 5, 5}, 1), started(z, {true}, {4, 5, 5}, 0, 1, 6)}) {
    EXPECT_GT(largest_difference(other[0].cpu(), got[0].cpu()), 0.1);
  }
}

// Mean, variance and bounds of the truncated normal distribution.
inline void expect_truncated_normal(at::Device device) {
  const at::Tensor e =
      started(at::zeros({2, 40001}, at::device(device)), {true, true}, {0, 1LL << 40}, 0, 3).to(at::kCPU, at::kDouble);
  EXPECT_NEAR(e.mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(e.square().mean().item<double>(), 9, 0.15);
  EXPECT_LE(e.abs().max().item<double>(), 2 * 1.1368473 * 3);
  EXPECT_GT(e.abs().max().item<double>(), 2 * 1.136 * 3 * 0.99);
  EXPECT_NEAR((e[0] * e[1]).mean().item<double>(), 0, 0.2);
}

}  // namespace hrm::ops::testing
