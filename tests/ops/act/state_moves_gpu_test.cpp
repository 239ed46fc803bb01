#include "ops/act/state_moves_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

TEST(DampedUpdateGpu, IsADampedSum) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : kTypes) expect_damped_sum(at::kCUDA, dtype);
}

TEST(DampedUpdateGpu, NoiseDependsOnDrawNumberAndSeed) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : kTypes) expect_path_noise_by_draw(at::kCUDA, dtype);
}

TEST(StartStateGpu, DependsOnDrawNumberAndSeed) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : kTypes) expect_starts_by_draw(at::kCUDA, dtype);
}

TEST(StartStateGpu, IsATruncatedNormalDistribution) {
  HRM_NEEDS_GPU();
  expect_truncated_normal(at::kCUDA);
}

TEST(StateMovesGpu, AreThoseOfTheCpu) {
  HRM_NEEDS_GPU();
  const at::Tensor update = normal({3, 4099}, 1, at::kFloat), state = normal({3, 4099}, 2, at::kFloat);
  const std::vector<int64_t> draws{7, 65536, 123456789012};
  EXPECT_LT(largest_difference(moved(update.to(at::kCUDA), state.to(at::kCUDA), draws, 9).cpu(),
                               moved(update, state, draws, 9)),
            1e-5);
  EXPECT_LT(largest_difference(started(state.to(at::kCUDA), {true, false, true}, draws, 1).cpu(),
                               started(state, {true, false, true}, draws, 1)),
            1e-5);
}

}  // namespace
}  // namespace hrm::ops
