// The open window of metrics: sums, means, clocks, and its state.

#include "train/metric_window.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/state_check.h"

namespace hrm::train {
namespace {

constexpr int64_t kTaskSums = 2;

// Two sums of the task, then kExtras values.
std::vector<double> step_values(double loss, double norm, double skipped = 0) {
  std::vector<double> values(kTaskSums + kExtras, 0);
  values[0] = loss;
  values[1] = 1;
  values[kTaskSums + kNormRaw] = norm;
  values[kTaskSums + kSkipped] = skipped;
  return values;
}

TEST(MetricWindow, SumsFiniteStepsAlone) {
  MetricWindow window(kTaskSums, kExtras, /*several_ranks=*/false);
  EXPECT_EQ(window.mean(kNormRaw), 0) << "of no steps";
  window.add(step_values(2, 4).data());
  window.add(step_values(std::numeric_limits<double>::infinity(), 0, 1).data());
  window.add(step_values(3, 8).data());
  EXPECT_EQ(window.steps(), 2);
  EXPECT_EQ(window.task_sums(), (std::vector<double>{5, 2}));
  EXPECT_EQ(window.mean(kNormRaw), 6);
  EXPECT_EQ(window.sum(kSkipped), 1) << "that it was left out counts";
}

TEST(MetricWindow, TimesAreWithoutPauses) {
  MetricWindow window(kTaskSums, kExtras, /*several_ranks=*/true);
  window.resume_after(6);
  window.start(100);
  for (int64_t step = 7; step <= 10; ++step) {
    window.queued(step, 100 + static_cast<double>(step - 6) * 3);
    window.add_data_wait(2);
    window.add_rank_wait(5);
    window.add(step_values(1, 1).data());
  }
  window.add_pause(4);
  const MetricWindow::Times times = window.times(10);
  EXPECT_EQ(times.steps, 4);
  EXPECT_EQ(times.end_s, 112) << "when the host had queued the last step";
  EXPECT_EQ(times.step_s, (112 - 100 - 4) / 4.0);
  EXPECT_EQ(times.data_wait_ms, 2);
  EXPECT_EQ(window.mean_rank_wait_ms(), 5);
  window.clear(10, times.end_s);
  EXPECT_EQ(window.steps(), 0);
  EXPECT_EQ(window.mean_rank_wait_ms(), 0);
  window.queued(12, 120);
  EXPECT_EQ(window.times(12).step_s, (120 - 112) / 2.0);
  EXPECT_EQ(window.times(12).data_wait_ms, 0);
}

TEST(MetricWindow, GoesOnFromItsState) {
  MetricWindow window(kTaskSums, kExtras, false), other(kTaskSums, kExtras, false);
  window.add(step_values(2, 4).data());
  EXPECT_EQ(list_state(window).tensors.front().name, "loop.open_window.sums");
  EXPECT_EQ(list_state(window).integers.front().first, "loop.open_window.steps");
  test::copy_state(window, other);
  EXPECT_EQ(other.steps(), 1);
  EXPECT_EQ(other.task_sums(), window.task_sums());
  EXPECT_EQ(other.mean(kNormRaw), 4);
}

}  // namespace
}  // namespace hrm::train
