#include "hrm/optim/schedules.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hrm::optim {
namespace {

using config::Schedule;
using config::WsdShape;

TEST(Schedules, WarmupThenCosineToTheFloor) {
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 2.0, 1, 100, 10, 0.1), 0.2) << "the first training step is 1";
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 2.0, 9, 100, 10, 0.1), 1.8);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 2.0, 10, 100, 10, 0.1), 2.0);
  EXPECT_NEAR(scheduled(Schedule::cosine, 2.0, 55, 100, 10, 0.1), 2.0 * (0.1 + 0.9 * 0.5), 1e-15) << "half-way";
  EXPECT_NEAR(scheduled(Schedule::cosine, 2.0, 100, 100, 10, 0.1), 0.2, 1e-15);
  EXPECT_NEAR(scheduled(Schedule::cosine, 2.0, 150, 100, 10, 0.1), 0.2, 1e-15) << "no rise after the end";
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 2.0, 60, 100, 10, 1.0), 2.0) << "ratio 1 = constant";
}

TEST(Schedules, LinearAndConstant) {
  EXPECT_DOUBLE_EQ(scheduled(Schedule::linear, 1.0, 0, 10, 0, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::linear, 1.0, 5, 10, 0, 0.2), 0.6);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::linear, 1.0, 10, 10, 0, 0.2), 0.2);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::constant, 3.0, 2, 10, 4, 0.0), 1.5);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::constant, 3.0, 10, 10, 4, 0.0), 3.0) << "the ratio belongs to the decays";
}

TEST(Schedules, WarmupStableDecay) {
  // Default: half of what follows the warm-up is flat, the rest decays by 1 - sqrt.
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 30, 50, 10, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 35, 50, 10, 0.0), 0.5) << "a quarter of the decay: 1 - sqrt(1/4)";
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 50, 50, 10, 0.0), 0.0);
  const WsdOptions linear{5, 4, WsdShape::linear};
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 5, 50, 0, 0.5, linear), 1.0);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 7, 50, 0, 0.5, linear), 0.75);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 40, 50, 0, 0.5, linear), 0.5) << "after the decay: the floor";
  const WsdOptions late{-1, 10, WsdShape::linear};
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 40, 50, 4, 0.0, late), 1.0) << "flat as long as the decay leaves it";
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 45, 50, 4, 0.0, late), 0.5);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::wsd, 1.0, 30, 50, 10, 0.0, {10, -1, WsdShape::linear}), 2.0 / 3)
      << "decays to the end";
  EXPECT_NEAR(scheduled(Schedule::wsd, 1.0, 6, 50, 0, 0.0, {5, 4, WsdShape::cosine}), 0.5 * (1 + std::sqrt(0.5)),
              1e-15);
}

TEST(Schedules, DegenerateLengths) {
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 1.0, 1, 1, 0, 0.0), 0.0);
  EXPECT_DOUBLE_EQ(scheduled(Schedule::cosine, 1.0, 3, 3, 8, 0.0), 0.375) << "shorter than its warm-up";
  EXPECT_TRUE(std::isfinite(scheduled(Schedule::wsd, 1.0, 5, 5, 5, 0.0)));
}

}  // namespace
}  // namespace hrm::optim
