#include "hrm/runtime/gpu_health.h"

#include <chrono>
#include <map>
#include <mutex>

#include "support/fake_nvml.h"

namespace hrm {
namespace {

class GpuHealthTest : public ::testing::Test {
 protected:
  std::unique_ptr<GpuHealth> start() {
    why_ = "";
    return GpuHealth::start(options_, why_);
  }
  // Waits for the samples, and for one that began after the fake was changed.
  void samples(int count) {
    const int end = fake_.samples + count + 1;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (fake_.samples < end && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    ASSERT_GE(fake_.samples, end);
  }
  static std::map<std::string, double> map_of(const GpuHealth::Values& values) {
    return {values.begin(), values.end()};
  }
  size_t warned() {
    const std::lock_guard lock(mutex_);
    return warnings_.size();
  }

  volatile test::FakeNvml& fake_ = test::fake_nvml();
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::string why_;
  GpuHealthOptions options_{.gpu = {"0000:3B:00.0", "12345678-1234"},
                            .library = test::fake_nvml_library(),
                            .interval_s = 1e-3,
                            .warn = [this](const std::string& text) {
                              const std::lock_guard lock(mutex_);
                              warnings_.push_back(text);
                            }};
};

TEST_F(GpuHealthTest, TellsWhatTheDriverSays) {
  fake_.link_kib = 1 << 20;
  const auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(3);
  const GpuHealth::Values values = health->take();
  auto got = map_of(values);
  EXPECT_DOUBLE_EQ(got.at("utilization"), 0.98);
  EXPECT_DOUBLE_EQ(got.at("power_w"), 650);
  EXPECT_DOUBLE_EQ(got.at("power_limit_w"), 700);
  EXPECT_EQ(got.at("sm_clock_mhz"), 1755);
  EXPECT_EQ(got.at("sm_clock_max_mhz"), 1980);
  EXPECT_EQ(got.at("memory_clock_mhz"), 2619);
  EXPECT_EQ(got.at("throttle_reasons"), kPowerCap);
  EXPECT_EQ(got.at("temperature_c"), 71);
  EXPECT_EQ(got.at("memory_used_bytes"), 10.0 * (1 << 30));
  EXPECT_EQ(got.at("pcie_tx_bytes_per_s"), 3000);
  EXPECT_EQ(got.at("pcie_rx_bytes_per_s"), 5000);
  EXPECT_GT(got.at("nvlink_tx_bytes_per_s"), 0);
  EXPECT_NEAR(got.at("nvlink_rx_bytes_per_s") / got.at("nvlink_tx_bytes_per_s"), 2, 1e-9);
  EXPECT_EQ(GpuHealth::text(values), "98 %, 650 W, 71 C, 1755 MHz");
  EXPECT_EQ(warned(), 0U) << "the ordinary power limit is no fault";
}

TEST_F(GpuHealthTest, FoldsTheSamplesOfAWindow) {
  const auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(1);
  health->take();
  samples(1);
  fake_.power_mw = 150000;
  fake_.temperature_c = 40;
  fake_.reasons = kIdle;
  samples(1);
  auto got = map_of(health->take());
  EXPECT_GT(got.at("power_w"), 150);
  EXPECT_LT(got.at("power_w"), 650);
  EXPECT_EQ(got.at("temperature_c"), 71) << "the highest";
  EXPECT_EQ(got.at("throttle_reasons"), kIdle | kPowerCap) << "all that occurred";
  samples(1);
  health->take();
  got = map_of(health->take());
  EXPECT_EQ(got.at("power_w"), 150) << "without a new sample, or with one, the last";
}

TEST_F(GpuHealthTest, WarnsOnceAnEpisode) {
  options_.calm_s = 0.1;
  fake_.reasons = kPowerCap | kThermalHardware | kHardwareSlowdown;
  fake_.clock_mhz = 1110;
  fake_.temperature_c = 91;
  const auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(5);
  ASSERT_EQ(warned(), 1U);
  EXPECT_EQ(
      warnings_[0],
      "the clocks of GPU 0000:3B:00.0 are throttled: heat (by the hardware), hardware slowdown (91 C, 650 W, 1110 "
      "of 1980 MHz); steps take longer until it ends; check its cooling");
  EXPECT_EQ(GpuHealth::text(health->take()),
            "98 %, 650 W, 91 C, 1110 MHz, throttled: heat (by the hardware), hardware slowdown");
  fake_.reasons = kPowerCap;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  fake_.reasons = kPowerBrake;
  samples(3);
  ASSERT_EQ(warned(), 2U);
  EXPECT_NE(warnings_[1].find("power brake"), std::string::npos);
  EXPECT_NE(warnings_[1].find("check its power supply"), std::string::npos);
}

TEST_F(GpuHealthTest, LeavesOutWhatIsUnknown) {
  fake_.unsupported = 1;
  const auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(1);
  const auto got = map_of(health->take());
  EXPECT_EQ(got.size(), 1U);
  EXPECT_EQ(got.count("throttle_reasons"), 1U);
}

TEST_F(GpuHealthTest, OfADividedGpuOnlyWhatIsOurs) {
  fake_.divided = 1;
  const auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(1);
  auto got = map_of(health->take());
  EXPECT_EQ(got.at("memory_used_bytes"), 1 << 30) << "the instance's";
  EXPECT_EQ(got.at("temperature_c"), 71);
  for (const char* name : {"utilization", "pcie_tx_bytes_per_s", "nvlink_tx_bytes_per_s"})
    EXPECT_EQ(got.count(name), 0U);

  options_.gpu.uuid = "another";
  const auto unknown = start();
  samples(1);
  EXPECT_EQ(map_of(unknown->take()).count("memory_used_bytes"), 0U);
}

TEST_F(GpuHealthTest, IsAbsentWithoutError) {
  options_.library = "libno-such-nvml.so.1";
  EXPECT_EQ(start(), nullptr);
  EXPECT_NE(why_.find("libno-such-nvml"), std::string::npos) << why_;
  options_.library = "libm.so.6";
  EXPECT_EQ(start(), nullptr);
  EXPECT_EQ(why_, "libm.so.6 is no NVML");
  options_.library = test::fake_nvml_library();
  options_.gpu.pci_bus_id = "0000:99:00.0";
  EXPECT_EQ(start(), nullptr);
  EXPECT_EQ(why_, "NVML does not know the GPU 0000:99:00.0 (error 6)");
  fake_.refuse_init = 9;  // no driver
  EXPECT_EQ(start(), nullptr);
  EXPECT_NE(why_.find("(NVML error 9)"), std::string::npos) << why_;
  EXPECT_TRUE(warnings_.empty());
  EXPECT_EQ(gpu_address(at::kCPU).pci_bus_id, "");
}

TEST_F(GpuHealthTest, EndsAlthoughTheDriverHangs) {
  auto health = start();
  ASSERT_NE(health, nullptr) << why_;
  samples(1);
  health.reset();
  EXPECT_EQ(fake_.shutdowns, 1);
  fake_.hang_s = 1;
  const int before = fake_.samples;
  options_.patience_s = 0.05;
  health = start();
  while (fake_.samples == before) std::this_thread::yield();
  health.reset();
  EXPECT_EQ(fake_.shutdowns, 1) << "it was not waited for";
  while (fake_.shutdowns == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace hrm
