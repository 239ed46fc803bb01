// The values of GpuHealth in the lines of a run. A stand-in is the GPU.

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "support/fake_nvml.h"
#include "train/small_run.h"

namespace hrm {
namespace {

TEST(GpuHealthMetrics, JoinTheLinesOfARun) {
  volatile test::FakeNvml& fake = test::fake_nvml();
  GpuHealthOptions options;
  options.gpu.pci_bus_id = "0000:3B:00.0";
  options.library = test::fake_nvml_library();
  std::string why;
  const auto health = GpuHealth::start(options, why);
  ASSERT_NE(health, nullptr) << why;
  while (health->take().empty()) std::this_thread::yield();
  EXPECT_GT(fake.samples, 0);
  const auto dir = testing::fresh_folder("run");
  testing::SmallRun run(dir, {"train.steps=4", "train.log_every=2"});
  run.trainer.set_gpu_health(health.get());
  run.trainer.start_fresh();
  ::testing::internal::CaptureStderr();
  run.trainer.run();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("| GPU 98 %, 650 W, 71 C, 1755 MHz | eta"), std::string::npos) << said;
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  for (const char* field : {"\"perf/gpu/power_w\":650.0", "\"perf/gpu/throttle_reasons\":4.0",
                            "\"perf/gpu/temperature_c\":71.0", "\"perf/gpu/sm_clock_mhz\":1755.0"}) {
    EXPECT_NE(line.find(field), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace hrm
