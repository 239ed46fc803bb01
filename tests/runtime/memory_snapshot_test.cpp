#include "hrm/runtime/memory_snapshot.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/runtime/memory_history.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

using Action = MemoryEvent::Action;

SourcePtr source(const char* phase, std::vector<std::string> operations = {}) {
  return std::make_shared<AllocationSource>(AllocationSource{.phase = phase, .operations = std::move(operations)});
}

// Block 100 was there before the recording. Forward makes 1000 and 2000 (twice the same size) and frees 2000; backward
// makes 3000, which stays. The peak is before 2000 goes.
MemorySnapshot example() {
  const SourcePtr product = source("forward", {"aten::empty", "aten::mm", "hrm::linear"}), grad = source("backward");
  MemorySnapshot snapshot;
  snapshot.segments.push_back(
      {.address = 100,
       .size = 4096,
       .large = true,
       .blocks = {{.size = 1024, .requested = 1000, .allocated = true, .active = true},
                  {.size = 512, .requested = 500, .allocated = true, .active = true, .source = product},
                  {.size = 1024},
                  {.size = 1536, .requested = 300, .allocated = true, .active = true, .source = grad}}});
  snapshot.segments.push_back({.address = 9000, .size = 2048, .pool = {0, 3}, .blocks = {{.size = 2048}}});
  snapshot.events = {{.action = Action::alloc, .address = 100 + 1024, .size = 500, .source = product},
                     {.action = Action::alloc, .address = 2000, .size = 500, .source = product},
                     {.action = Action::free_requested, .address = 2000, .size = 500},
                     {.action = Action::free_completed, .address = 2000, .size = 500},
                     {.action = Action::alloc, .address = 100 + 2560, .size = 300, .source = grad}};
  return snapshot;
}

TEST(MemorySnapshot, PeakIsThatOfTheEventsNotOfTheEnd) {
  const AllocationsAtPeak peak = allocations_at_peak(example());
  EXPECT_EQ(peak.bytes, 2000U);
  EXPECT_EQ(peak.tensors, 3);
  ASSERT_EQ(peak.groups.size(), 2U);
  EXPECT_EQ(peak.groups[0].bytes(), 1000U);
  EXPECT_EQ(peak.groups[1].bytes(), 1000U);
  for (const AllocationGroup& group : peak.groups) {
    const bool product = group.tensors == 2;
    EXPECT_EQ(group.phase, product ? "forward" : "before the recording");
    EXPECT_EQ(group.operation, product ? "aten::mm" : "");  // not aten::empty, which only makes a tensor
    EXPECT_EQ(group.each, product ? 500U : 1000U);
  }
}

TEST(MemorySnapshot, NowIsWhatIsThere) {
  const AllocationsAtPeak now = allocations_now(example());
  EXPECT_EQ(now.bytes, 1800U);
  EXPECT_EQ(now.tensors, 3);
  EXPECT_EQ(now.groups.front().each, 1000U);
  EXPECT_EQ(now.groups.back().phase, "backward");
}

TEST(MemorySnapshot, WithoutEventsThePeakIsNow) {
  MemorySnapshot snapshot = example();
  snapshot.events.clear();
  EXPECT_EQ(allocations_at_peak(snapshot).bytes, allocations_now(snapshot).bytes);
}

// A block that was freed in the recording and had been there before it counts until then.
TEST(MemorySnapshot, WhatWasThereBeforeCountsUntilItIsFreed) {
  MemorySnapshot snapshot;
  snapshot.events = {{.action = Action::alloc, .address = 1, .size = 10, .source = source("forward")},
                     {.action = Action::free_requested, .address = 5, .size = 70},
                     {.action = Action::free_requested, .address = 1, .size = 10}};
  const AllocationsAtPeak peak = allocations_at_peak(snapshot);
  EXPECT_EQ(peak.bytes, 80U);
  EXPECT_EQ(peak.groups.front().phase, "before the recording");
  EXPECT_TRUE(allocations_now(snapshot).groups.empty());
}

TEST(MemorySnapshot, TableHasTheLargestAndALineForTheRest) {
  const std::string one = allocations_table(allocations_at_peak(example()), 1);
  EXPECT_NE(one.find("all others"), std::string::npos) << one;
  EXPECT_NE(one.find("50.0%"), std::string::npos) << one;
  const std::string all = allocations_table(allocations_at_peak(example()), 9);
  EXPECT_EQ(all.find("all others"), std::string::npos) << all;
  EXPECT_NE(all.find("aten::mm"), std::string::npos) << all;
}

TEST(MemorySnapshot, PoolsOfGraphsAreApart) {
  const std::vector<PoolUse> pools = pool_uses(example());
  ASSERT_EQ(pools.size(), 2U);
  EXPECT_EQ(pools[0].name, "default, large blocks");
  EXPECT_EQ(pools[0].reserved, 4096U);
  EXPECT_EQ(pools[0].allocated, 3072U);
  EXPECT_EQ(pools[0].unused_parts, 1024U);
  EXPECT_EQ(pools[1].name, "graphs, small blocks");
  EXPECT_EQ(pools[1].unused_parts, 0U);  // no tensor is in it: the allocator can give it back
  EXPECT_NE(pools_text(pools).find("graphs, small blocks: 2.0 KiB reserved in 1 segment"), std::string::npos)
      << pools_text(pools);
}

TEST(MemorySnapshot, FileIsAPickleWithAllBlocksAndEvents) {
  const test::TempDir dir;
  MemorySnapshot snapshot = example();
  snapshot.device = 1;
  write_memory_snapshot(dir / "memory.pickle", snapshot);
  const std::string bytes = read_text(dir / "memory.pickle", ExitCode::environment);
  const auto whole = torch::jit::unpickle(bytes.data(), bytes.size()).toGenericDict();
  const auto segments = whole.at("segments").toList();
  ASSERT_EQ(segments.size(), 2U);
  const c10::IValue first = segments.get(0);
  EXPECT_EQ(first.toGenericDict().at("allocated_size").toInt(), 3072);
  const auto blocks = first.toGenericDict().at("blocks").toList();
  ASSERT_EQ(blocks.size(), 4U);
  const c10::IValue second = blocks.get(1), third = blocks.get(2);
  EXPECT_EQ(second.toGenericDict().at("address").toInt(), 100 + 1024);
  EXPECT_EQ(second.toGenericDict().at("frames").toList().size(), 4U);
  EXPECT_EQ(third.toGenericDict().at("state").toStringRef(), "inactive");
  const auto traces = whole.at("device_traces").toList();
  ASSERT_EQ(traces.size(), 2U);  // a list for each device up to this one
  const c10::IValue events = traces.get(1);
  ASSERT_EQ(events.toList().size(), 5U);
  const c10::IValue freed = events.toList().get(2);
  EXPECT_EQ(freed.toGenericDict().at("action").toStringRef(), "free_requested");
}

TEST(MemorySnapshot, AFileThatCannotBeWrittenIsNamed) {
  try {
    write_memory_snapshot("/proc/none/memory.pickle", example());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::environment);
    EXPECT_NE(std::string(e.what()).find("/proc/none"), std::string::npos) << e.what();
  }
}

TEST(MemoryHistory, ACpuHasNone) {
  try {
    start_memory_history(at::kCPU);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("profiling.memory=false"), std::string::npos);
  }
  EXPECT_FALSE(records_memory(at::kCPU));
  stop_memory_history(at::kCPU);
  watch_out_of_memory(at::kCPU, "");
  EXPECT_EQ(memory_pools_text(at::kCPU), "");
}

}  // namespace
}  // namespace hrm
