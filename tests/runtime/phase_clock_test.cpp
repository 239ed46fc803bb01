#include "hrm/runtime/phase_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
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

double ms_of(const PhaseTimes& times, const std::string& name) {
  for (const auto& [key, ms] : times) {
    if (key == name) return ms;
  }
  return -1;
}

// What the marks' own clock says, on a machine however busy.
TEST(PhaseClock, SumsOfTheStepsSinceTheLastTake) {
  PhaseClock clock(at::kCPU);
  EXPECT_TRUE(clock.take(1).empty());
  Bounds forward, backward;
  for (int step = 1; step <= 2; ++step) {
    sleep_ms(40);  // nobody's
    const Mark begun = mark([&] { clock.begin(); });
    sleep_ms(10);
    const Mark first = mark([&] { clock.end(Phase::forward); });
    sleep_ms(20 * step);
    const Mark second = mark([&] { clock.end(Phase::backward); });
    forward.add(begun, first);
    backward.add(first, second);
  }
  clock.read(2);
  const PhaseTimes times = clock.take(2);
  ASSERT_EQ(times.size(), 2U) << "phases that never ended are left out";
  EXPECT_EQ(times[0].first, "forward");
  EXPECT_EQ(times[1].first, "backward");
  EXPECT_GE(times[0].second, std::max(forward.least, 20.0));
  EXPECT_LE(times[0].second, forward.most);
  EXPECT_GE(times[1].second, std::max(backward.least, 60.0));
  EXPECT_LE(times[1].second, backward.most);

  Bounds again;
  const Mark begun = mark([&] { clock.begin(); });
  again.add(begun, mark([&] { clock.end(Phase::forward); }));
  clock.read(3);
  clock.read(4);
  const PhaseTimes second = clock.take(4);
  EXPECT_EQ(ms_of(second, "backward"), 0);
  EXPECT_GE(ms_of(second, "forward"), std::max(again.least, 0.0));
  EXPECT_LE(ms_of(second, "forward"), again.most);
  EXPECT_TRUE(clock.take(3).empty()) << "an older read that was passed by";
  EXPECT_DOUBLE_EQ(ms_of(clock.totals(), "backward"), times[1].second);
}

// Of ranges inside each other the innermost has the time; what lies between ranges belongs to the next one.
TEST(PhaseClock, RangesMarkTheCurrentClock) {
  { const PhaseRange unheard(Phase::forward); }
  PhaseClock clock(at::kCPU);
  const PhaseClock::Scope scope(&clock);
  const Mark begun = mark([&] { clock.begin(); });
  sleep_ms(15);
  Mark ended;
  {
    const PhaseRange update(Phase::optimizer_step);
    {
      const PhaseRange project(Phase::project);
      sleep_ms(30);
    }
    sleep_ms(5);
    const Clock::time_point before = Clock::now();
    ended = {before, before};
  }
  ended.latest = Clock::now();
  const PhaseTimes times = clock.totals();
  const double whole = ms_of(times, "optimizer.step") + ms_of(times, "project");
  EXPECT_GE(ms_of(times, "project"), 30);
  EXPECT_GE(ms_of(times, "optimizer.step"), 20);
  EXPECT_GE(whole, ms_between(begun.latest, ended.earliest));
  EXPECT_LE(whole, ms_between(begun.earliest, ended.latest));
}

TEST(PhaseClock, ARangeThatFailedIsNotMeasured) {
  PhaseClock clock(at::kCPU);
  const PhaseClock::Scope scope(&clock);
  clock.begin();
  try {
    const PhaseRange range(Phase::forward);
    throw std::runtime_error("capture");
  } catch (const std::runtime_error&) {
  }
  { const PhaseRange range(Phase::backward); }
  const PhaseTimes times = clock.totals();
  EXPECT_EQ(ms_of(times, "forward"), -1);
  EXPECT_GE(ms_of(times, "backward"), 0);
}

TEST(PhaseClock, ScopesNestAndEnd) {
  PhaseClock first(at::kCPU), second(at::kCPU);
  EXPECT_EQ(PhaseClock::current(), nullptr);
  {
    const PhaseClock::Scope outer(&first);
    {
      const PhaseClock::Scope inner(&second);
      EXPECT_EQ(PhaseClock::current(), &second);
    }
    EXPECT_EQ(PhaseClock::current(), &first);
  }
  EXPECT_EQ(PhaseClock::current(), nullptr);
}

}  // namespace
}  // namespace hrm
