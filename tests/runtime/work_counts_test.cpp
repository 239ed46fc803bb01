#include "hrm/runtime/work_counts.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <thread>

namespace hrm {
namespace {

TEST(WorkCounts, CountsCallsAndMemory) {
  const at::Tensor a = at::ones({256}), b = at::ones({256});
  const WorkCounter counter(at::kCPU);
  {
    const at::Tensor c = at::add(a, b);  // 1 KiB
    const at::Tensor d = at::add(c, b);
  }
  const at::Tensor e = at::empty({1024});
  const WorkCounts counts = counter.counts();
  EXPECT_EQ(counts.calls, 3);
  EXPECT_EQ(counts.allocations, 3);
  EXPECT_EQ(counts.bytes, 2 * 1024 + 4096);
  EXPECT_EQ(counts.peak_bytes, 4096);
}

TEST(WorkCounts, FollowsTheBackwardPass) {
  const at::Tensor a = at::ones({64}).requires_grad_();
  const at::Tensor loss = (a * a).sum();
  const WorkCounter counter(at::kCPU);
  loss.backward();
  EXPECT_GT(counter.counts().calls, 2);
  EXPECT_GE(counter.counts().bytes, 64 * 4);
}

TEST(WorkCounts, LeavesOtherThreadsAndOtherTimesOut) {
  at::Tensor a;
  WorkCounts counts;
  {
    const WorkCounter counter(at::kCPU);
    std::thread([&] { a = at::ones({256}); }).join();
    counts = counter.counts();
  }
  EXPECT_EQ(counts.calls + counts.allocations + counts.bytes, 0);
  a = at::ones({256});
  const WorkCounter again(at::kCPU);
  EXPECT_EQ(again.counts().calls, 0);
}

}  // namespace
}  // namespace hrm
