#include "hrm/runtime/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace hrm {
namespace {

TEST(Memory, OnTheCpuTheResidentPeak) {
  const int64_t before = memory_report(at::kCPU).host_resident_peak;
  EXPECT_GT(before, 1 << 20);
  {
    const at::Tensor big = at::ones({512 << 20}, at::kByte);
    EXPECT_GT(memory_report(at::kCPU).host_resident_peak, before);
  }
  const MemoryReport report = memory_report(at::kCPU);
  EXPECT_EQ(report.allocated_peak, 0);
  EXPECT_EQ(report.device_total, 0);
  EXPECT_EQ(report.fragmentation(), 0);
  EXPECT_NE(memory_text(report).find("of resident memory"), std::string::npos);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, FreedHostMemoryStays) {
  if (std::getenv("GLIBC_TUNABLES") != nullptr || std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr) {
    GTEST_SKIP() << "the environment sets up malloc";
  }
  keep_freed_host_memory();
  const auto page_faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const auto use = [] { return std::vector<uint8_t>(64 << 20, 1).back(); };  // 16,384 pages
  use();
  const auto before = page_faults();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(use(), 1);
  EXPECT_LT(page_faults() - before, 5 * 1000);
}
#endif

TEST(Memory, TextOfAGpu) {
  MemoryReport report;
  report.allocated_peak = int64_t{3} << 30;
  report.reserved_peak = int64_t{4} << 30;
  report.device_used = int64_t{5} << 30;
  report.device_total = int64_t{80} << 30;
  EXPECT_DOUBLE_EQ(report.fragmentation(), 0.25);
  EXPECT_EQ(
      memory_text(report),
      "peak 3.0 GiB in tensors, 4.0 GiB reserved (25 % unused at the peak), 5.0 GiB of 80.0 GiB of the GPU in use");
}

}  // namespace
}  // namespace hrm
