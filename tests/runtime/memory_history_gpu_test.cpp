#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "hrm/runtime/captured_step.h"
#include "hrm/runtime/describe_exception.h"
#include "hrm/runtime/device.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/memory_history.h"
#include "hrm/runtime/nvtx.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

constexpr int64_t kMib = 1 << 20;

class MemoryHistoryGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  }
  at::TensorOptions bytes() const { return at::device(device_).dtype(at::kByte); }
  const at::Device device_{at::kCUDA, 0};
};

const AllocationGroup* group_of(const AllocationsAtPeak& peak, uint64_t each) {
  for (const AllocationGroup& group : peak.groups) {
    if (group.each == each) return &group;
  }
  return nullptr;
}

TEST_F(MemoryHistoryGpu, NamesPhaseAndOperationAtThePeak) {
  start_memory_history(device_);
  ASSERT_TRUE(records_memory(device_));
  at::Tensor kept;
  {
    const ProfilerRange range(RangeKind::step, "forward");
    const at::Tensor gone = at::zeros({33 * kMib}, bytes());
    kept = at::zeros({17 * kMib}, bytes()).add(1);
  }
  const MemorySnapshot snapshot = memory_snapshot(device_);
  stop_memory_history(device_);
  EXPECT_FALSE(records_memory(device_));
  const AllocationsAtPeak peak = allocations_at_peak(snapshot), now = allocations_now(snapshot);
  const AllocationGroup* const gone = group_of(peak, 33 * kMib);
  ASSERT_NE(gone, nullptr);
  EXPECT_EQ(gone->phase, "forward");
  EXPECT_EQ(group_of(now, 33 * kMib), nullptr);
  const AllocationGroup* const sum = group_of(now, 17 * kMib);
  ASSERT_NE(sum, nullptr);
  EXPECT_EQ(sum->operation, "aten::add");
  const test::TempDir dir;
  write_memory_snapshot(dir / "memory.pickle", snapshot);
}

TEST_F(MemoryHistoryGpu, ACaptureIsRecorded) {
  start_memory_history(device_);
  CapturedStep step({.name = "test", .device = device_, .warmup = 1});
  const at::Tensor in = at::zeros({19 * kMib}, bytes()), out = at::zeros({19 * kMib}, bytes());
  for (int i = 0; i < 3; ++i) {
    const ProfilerRange range(RangeKind::step, "forward");
    step.run({}, {in, out}, [&] { out.copy_(in.add(1).mul_(2)); });
  }
  ASSERT_GT(step.replays(), 0);
  const MemorySnapshot snapshot = memory_snapshot(device_);
  stop_memory_history(device_);
  int64_t captured = 0;
  for (const MemoryEvent& event : snapshot.events) {
    captured += event.action == MemoryEvent::Action::alloc && event.size == 19 * kMib && event.source != nullptr &&
                event.source->phase == "forward";
  }
  EXPECT_EQ(captured, 2);  // one eager run and the capture; the replay allocates nothing
  const std::vector<PoolUse> pools = pool_uses(snapshot);
  EXPECT_TRUE(
      std::any_of(pools.begin(), pools.end(), [](const PoolUse& pool) { return pool.name == "graphs, large blocks"; }));
  EXPECT_NE(memory_pools_text(device_).find("default"), std::string::npos);
}

TEST_F(MemoryHistoryGpu, AnErrorNamesTheFileAndTheLargest) {
  const test::TempDir dir;
  const auto file = dir / "out_of_memory.pickle";
  watch_out_of_memory(device_, file);
  at::Tensor large;
  {
    const ProfilerRange range(RangeKind::step, "forward");
    large = at::empty({256 * kMib}, bytes());
  }
  Described error{};
  try {
    const at::Tensor impossible = at::empty({int64_t{1} << 42}, bytes());
    FAIL();
  } catch (const c10::OutOfMemoryError&) {
    error = describe_exception(std::current_exception());
  }
  EXPECT_EQ(error.code, ExitCode::environment);
  EXPECT_NE(error.sentence.find("most of them 1 of 256.0 MiB from forward"), std::string::npos) << error.sentence;
  EXPECT_NE(error.sentence.find(file.string()), std::string::npos) << error.sentence;
  EXPECT_GT(std::filesystem::file_size(file), 100U);
  watch_out_of_memory(device_, "");
}

}  // namespace
}  // namespace hrm
