#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/runtime/device.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/profiler.h"

namespace hrm {
namespace {

class MemoryGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  }
  const at::Device device_{at::kCUDA, 0};
};

TEST_F(MemoryGpu, CountsTensorsAndTheirPeak) {
  const int64_t mib = 1 << 20;
  const MemoryReport before = memory_report(device_);
  { const at::Tensor gone = at::zeros({64 * mib}, at::device(device_).dtype(at::kByte)); }
  const at::Tensor kept = at::zeros({16 * mib}, at::device(device_).dtype(at::kByte));
  const MemoryReport after = memory_report(device_);
  EXPECT_EQ(after.allocated - before.allocated, 16 * mib);
  EXPECT_GE(after.allocated_peak, before.allocated + 64 * mib);
  EXPECT_GE(after.reserved_peak, after.allocated_peak);
  EXPECT_GE(after.device_used, after.reserved);
  EXPECT_GT(after.device_total, after.device_used);
}

TEST_F(MemoryGpu, ProfileOfKernels) {
  const at::Tensor a = at::ones({512, 512}, at::device(device_));
  at::mm(a, a);
  synchronize(device_);
  StepTrace trace(device_);
  for (int i = 0; i < 4; ++i) at::mm(a, a).exp_();
  a.sum().item<float>();
  const StepProfile profile = trace.profile();
  EXPECT_TRUE(profile.gpu);
  ASSERT_EQ(profile.waits.size(), 1U);  // that of item(), not the one that ends the recording
  EXPECT_EQ(profile.waits[0].name, "cudaStreamSynchronize");
  EXPECT_EQ(profile.waits[0].calls, 1);
  EXPECT_GE(profile.launches, 9);
  int64_t products = 0, elementwise = 0;
  for (const ProfileRow& row : profile.by_group) {
    if (row.name == "matrix products") products = row.calls;
    if (row.name == "elementwise") elementwise = row.calls;
  }
  EXPECT_GE(products, 4);  // a product may take a second kernel that adds its parts
  EXPECT_EQ(elementwise, 4);
  EXPECT_GE(profile.span_ms, profile.busy_ms);
  double sum = 0;
  for (const ProfileRow& row : profile.by_name) sum += row.ms;
  EXPECT_NEAR(sum, profile.busy_ms, 1e-6);  // nothing is counted twice
  EXPECT_GT(profile.busy_ms, 0);
}

}  // namespace
}  // namespace hrm
