#include "hrm/runtime/phase_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace hrm {
namespace {

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(PhaseClock, MeansOverTheStepsSinceTheLastCall) {
  PhaseClock clock(at::kCPU, 2);
  EXPECT_TRUE(clock.take().empty());
  for (int step = 0; step < 2; ++step) {
    sleep_ms(40);  // nobody's
    clock.begin();
    sleep_ms(10);
    clock.end(1);
    sleep_ms(20 + 20 * step);
    clock.end(0);
    clock.step();
  }
  const std::vector<double> first = clock.take();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_GE(first[0], 30);
  EXPECT_LT(first[0], 60);
  EXPECT_GE(first[1], 10);
  EXPECT_LT(first[1], 30);
  EXPECT_TRUE(clock.take().empty());

  clock.begin();
  clock.end(1);
  clock.step();
  const std::vector<double> second = clock.take();
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second[0], 0);
  EXPECT_GE(second[1], 0);
  EXPECT_LT(second[1], 10);
}

}  // namespace
}  // namespace hrm
