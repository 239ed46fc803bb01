#include <torch/csrc/autograd/function.h>

#include "ops/act/state_moves_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(DampedUpdate, IsADampedSum) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_damped_sum(at::kCPU, dtype);
}

TEST(DampedUpdate, NoiseDependsOnDrawNumberAndSeed) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_path_noise_by_draw(at::kCPU, dtype);
}

TEST(DampedUpdate, PassesTheGradientOnByShares) {
  const at::Tensor update = normal({2, 6}, 1, at::kDouble).requires_grad_(),
                   state = normal({2, 6}, 2, at::kDouble).requires_grad_(), grad = normal({2, 6}, 3, at::kDouble);
  damped_update(update, state, draws_on(at::kCPU, {1, 2}), 0, 0.25, 0.5, 7).backward(grad);
  EXPECT_TRUE(at::allclose(update.grad(), grad * 0.75));
  EXPECT_TRUE(at::allclose(state.grad(), grad * 0.25));
}

TEST(DampedUpdate, BadInputIsNamed) {
  const at::Tensor z = at::ones({2, 3}), draws = at::zeros({2}, at::kLong);
  const auto message = [&](const at::Tensor& state, const std::optional<at::Tensor>& draws, double damping,
                           double std) {
    return error_of([&] { damped_update(z, state, draws, 0, damping, std, 0); });
  };
  expect_message(message(at::ones({2, 4}), draws, 0, 1), {"hrm::damped_update", "[2, 3]", "[2, 4]"});
  expect_message(message(z, std::nullopt, 0, 1), {"needs draws"});
  expect_message(message(z, at::zeros({3}, at::kLong), 0, 1), {"draws", "[3]"});
  expect_message(message(z, draws, 1, 1), {"damping", "below 1"});
  expect_message(message(z, draws, 0, -1), {"std", "-1"});
}

TEST(StartState, DependsOnDrawNumberAndSeed) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    expect_starts_by_draw(at::kCPU, dtype);
  }
}

TEST(StartState, IsATruncatedNormalDistribution) {
  expect_truncated_normal(at::kCPU);
}

// Fixed for ever: an evaluation must find the same answers tomorrow.
TEST(StartState, KeepsItsNumbers) {
  const at::Tensor e = started(at::zeros({1, 4}), {true}, {3}, 1)[0];
  const at::Tensor noise = moved(at::zeros({1, 4}), at::zeros({1, 4}), {3}, 1, 0, 1)[0];
  // From the definitions, in Python.
  EXPECT_LT(largest_difference(e, at::tensor({1.432762, 0.119889, 1.305242, 1.310513}, at::kFloat)), 1e-5) << e;
  EXPECT_LT(largest_difference(noise, at::tensor({0.314736, 0.286167, 0.639017, 0.982396}, at::kFloat)), 1e-5) << noise;
}

TEST(StartState, BadInputIsNamed) {
  const at::Tensor z = at::ones({2, 3}), fresh = at::ones({2}, at::kBool), draws = at::zeros({2}, at::kLong);
  const auto message = [&](const at::Tensor& fresh, const at::Tensor& draws, double std) {
    return error_of([&] { start_state_(z, fresh, draws, 0, std, 0); });
  };
  expect_message(message(at::ones({3}, at::kBool), draws, 1), {"hrm::start_state_", "fresh", "[3]"});
  expect_message(message(fresh, at::zeros({2}, at::kInt), 1), {"draws", "Int"});
  expect_message(message(fresh, draws, -1), {"std", "-1"});
}

}  // namespace
}  // namespace hrm::ops
