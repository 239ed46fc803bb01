#include "hrm/runtime/phase_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace hrm {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// A call, and the time that its mark was made at: neither before the first nor behind the second.
struct Mark {
  Clock::time_point earliest, latest;
};

template <class Call>
Mark mark(const Call& call) {
  const Clock::time_point earliest = Clock::now();
  call();
  return {earliest, Clock::now()};
}

// Milliseconds that may lie between two marks.
struct Bounds {
  double least = 0, most = 0;

  void add(const Mark& from, const Mark& to) {
    least += ms_between(from.latest, to.earliest);
    most += ms_between(from.earliest, to.latest);
  }
};

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// What the marks' own clock says, on a machine however busy.
TEST(PhaseClock, MeansOverTheStepsSinceTheLastCall) {
  PhaseClock clock(at::kCPU, 2);
  EXPECT_TRUE(clock.take().empty());
  Bounds zeroth, first;
  for (int step = 0; step < 2; ++step) {
    sleep_ms(40);  // nobody's
    const Mark begun = mark([&] { clock.begin(); });
    sleep_ms(10);
    const Mark one = mark([&] { clock.end(1); });
    sleep_ms(20 + 20 * step);
    const Mark zero = mark([&] { clock.end(0); });
    clock.step();
    first.add(begun, one);
    zeroth.add(one, zero);
  }
  const std::vector<double> means = clock.take();
  ASSERT_EQ(means.size(), 2U);
  EXPECT_GE(means[0], std::max(zeroth.least / 2, 30.0));
  EXPECT_LE(means[0], zeroth.most / 2);
  EXPECT_GE(means[1], std::max(first.least / 2, 10.0));
  EXPECT_LE(means[1], first.most / 2);
  EXPECT_TRUE(clock.take().empty());

  Bounds again;
  const Mark begun = mark([&] { clock.begin(); });
  again.add(begun, mark([&] { clock.end(1); }));
  clock.step();
  const std::vector<double> second = clock.take();
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second[0], 0);
  EXPECT_GE(second[1], std::max(again.least, 0.0));
  EXPECT_LE(second[1], again.most);
}

}  // namespace
}  // namespace hrm
