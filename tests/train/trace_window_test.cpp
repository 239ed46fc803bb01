// Which steps of a run are profiled.

#include "train/trace_window.h"

#include <gtest/gtest.h>

#include "hrm/base/file.h"
#include "train/small_run.h"

namespace hrm::train {
namespace {

TEST(TraceWindow, WritesItsStepsWhenTheyAreDone) {
  const auto dir = testing::fresh_folder("trace");
  config::ProfilingConfig config;
  config.trace = true;
  config.trace_after = 1;
  config.trace_steps = 2;
  TraceWindow window(config, at::kCPU, dir / "trace.json");
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(window.before_step(step + 1));
    EXPECT_FALSE(std::filesystem::exists(dir / "trace.json")) << "before step " << step;
  }
  EXPECT_TRUE(window.before_step(4));
  EXPECT_TRUE(std::filesystem::exists(dir / "trace.json"));
  std::filesystem::remove(dir / "trace.json");
  window.finish();
  EXPECT_FALSE(std::filesystem::exists(dir / "trace.json")) << "it is closed";
}

TEST(TraceWindow, IsClosedWhereTheRunEndsWithinIt) {
  const auto dir = testing::fresh_folder("trace");
  config::ProfilingConfig config;
  config.trace = true;
  config.trace_after = 0;
  config.trace_steps = 100;
  TraceWindow window(config, at::kCPU, dir / "trace.json");
  EXPECT_TRUE(window.before_step(1));
  window.finish();
  EXPECT_NE(read_text(dir / "trace.json", ExitCode::data).find("traceEvents"), std::string::npos);
}

// A run for Nsight is over with its window.
TEST(TraceWindow, ARunForNsightEndsBehindIt) {
  const auto dir = testing::fresh_folder("trace");
  config::ProfilingConfig config;
  config.nsight_window = true;
  config.trace_after = 2;
  config.trace_steps = 1;
  TraceWindow window(config, at::kCPU, dir / "trace.json");
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(window.before_step(1)) << step;
  EXPECT_FALSE(window.before_step(1));
  EXPECT_FALSE(std::filesystem::exists(dir / "trace.json"));
  config.nsight_window = false;
  TraceWindow none(config, at::kCPU, dir / "trace.json");
  for (int step = 0; step < 6; ++step) EXPECT_TRUE(none.before_step(1)) << step;
}

}  // namespace
}  // namespace hrm::train
