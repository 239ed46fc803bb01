// How long ranks work and wait, and which are slow.

#include "hrm/parallel/step_clock.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/parallel/slow_ranks.h"

namespace hrm::parallel {
namespace {

void pass_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(StepClock, WaitsAreNoWork) {
  StepClock clock(at::kCPU);
  const at::Tensor own = at::full({}, -1, at::kDouble), waited = at::full({}, -1, at::kDouble);
  clock.begin_step(own, waited);
  EXPECT_EQ(own.item<double>(), 0);
  EXPECT_EQ(waited.item<double>(), 0);
  pass_ms(20);
  for (int i = 0; i < 2; ++i) {
    const StepClock::Wait wait(&clock);
    pass_ms(30);
  }
  pass_ms(20);
  clock.begin_step(own, waited);
  EXPECT_GE(own.item<double>(), 39);
  EXPECT_GE(waited.item<double>(), 59);
  EXPECT_LT(own.item<double>(), 400);  // a busy machine's
  clock.begin_step(own, waited);
  EXPECT_LT(waited.item<double>(), 1e-9);
}

TEST(StepClock, TellsTheWaitsOfEachAxis) {
  StepClock clock(at::kCPU, /*axes=*/3);
  const at::Tensor own = at::zeros({}, at::kDouble), waited = at::full({4}, -1, at::kDouble);
  clock.begin_step(own, waited);
  EXPECT_EQ(waited.sum().item<double>(), 0);
  for (const auto& [axis, ms] : {std::pair{0, 10}, std::pair{2, 40}, std::pair{StepClock::kNoAxis, 20}}) {
    const StepClock::Wait wait(StepClock::Of{&clock, axis});
    pass_ms(ms);
  }
  clock.begin_step(own, waited);
  EXPECT_GE(waited[0].item<double>(), 69);
  EXPECT_GE(waited[1].item<double>(), 9);
  EXPECT_EQ(waited[2].item<double>(), 0);
  EXPECT_GE(waited[3].item<double>(), 39);
  EXPECT_LT(waited[3].item<double>(), waited[0].item<double>() - 29);
  clock.begin_step(own, waited.narrow(0, 0, 2));
  EXPECT_EQ(waited[1].item<double>(), 0);
  EXPECT_THROW(clock.begin_step(own, at::zeros({5}, at::kDouble)), Error);
}

TEST(StepClock, NoClockMeasuresNothing) {
  const StepClock::Wait wait(nullptr);
}

std::string after(SlowRanks& ranks, int steps, const std::vector<double>& own_ms) {
  std::string text;
  for (int i = 0; i < steps; ++i) text += ranks.add(own_ms.data());
  return text;
}

TEST(SlowRanks, IsNamedOnce) {
  SlowRanks ranks(4, /*steps=*/10);
  EXPECT_EQ(after(ranks, 10, {20, 21, 22, 29}), "");
  EXPECT_EQ(after(ranks, 9, {20, 21, 33, 22}), "");
  const std::string text = after(ranks, 1, {20, 21, 33, 22});
  EXPECT_NE(text.find("rank 2 (33 ms)"), std::string::npos) << text;
  EXPECT_NE(text.find("works 21 ms a step"), std::string::npos) << text;
  EXPECT_EQ(text.find("rank 3"), std::string::npos) << text;
  EXPECT_EQ(after(ranks, 20, {20, 21, 33, 22}), "");
  EXPECT_EQ(after(ranks, 10, {20, 21, 22, 22}), "");
  EXPECT_NE(after(ranks, 10, {20, 21, 33, 40}).find("rank 2 (33 ms), rank 3 (40 ms)"), std::string::npos);
}

// A single long step is none of a slow rank, and neither is one that is not known.
TEST(SlowRanks, MediansCount) {
  SlowRanks ranks(2, 10);
  EXPECT_EQ(after(ranks, 1, {20, 900}) + after(ranks, 9, {20, 20}), "");
  EXPECT_EQ(after(ranks, 4, {20, NAN}) + after(ranks, 6, {20, 22}), "");
  EXPECT_NE(after(ranks, 10, {61, 20}).find("rank 0 (61 ms)"), std::string::npos);
}

TEST(SlowRanks, NamePlacesAndTheAxisOnWhichOthersWait) {
  SlowRanks ranks(2, 10);
  ranks.set_mesh([](int rank) { return "tensor " + std::to_string(rank) + " of 2"; }, {"tensor", "data"});
  std::string text;
  const double own[] = {20, 61}, waited[] = {80, 12};
  for (int i = 0; i < 10; ++i) text += ranks.add(own, waited);
  EXPECT_NE(text.find("rank 1 (61 ms; tensor 1 of 2)"), std::string::npos) << text;
  EXPECT_NE(text.find("they wait most on the tensor axis, 40 ms a step"), std::string::npos) << text;
}

}  // namespace
}  // namespace hrm::parallel
