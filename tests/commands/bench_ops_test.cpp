// The table of `bench ops`: complete, and every line runs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "commands/bench/ops_cases.h"
#include "commands/bench/timer.h"
#include "hrm/base/error.h"
#include "hrm/ops/backend.h"

namespace hrm::commands {
namespace {

ops::BenchShape tiny(bool mixes_by_mlp) {
  ops::BenchShape shape{"tiny", 2, 1, 81, 64, 2, 256, 11, 1, mixes_by_mlp, 256};
  (mixes_by_mlp ? shape.document : shape.window) = 16;
  return shape;
}

TEST(BenchOps, EveryOpHasItsLine) {
  std::set<std::string> listed;
  for (const ops::BenchOp& op : ops::bench_ops())
    EXPECT_TRUE(listed.insert(op.name).second) << op.name << " occurs twice";
  for (const ops::OpInfo& info : ops::op_table()) {
    EXPECT_EQ(listed.count(info.name), 1U) << "add " << info.name << " to src/ops/<family>/<family>_bench.cpp";
    listed.erase(info.name);
  }
  EXPECT_TRUE(listed.empty()) << *listed.begin() << " is no registered op";
}

TEST(BenchOps, EveryLineRunsWithBothBackends) {
  const at::NoGradGuard no_grad;
  for (const ops::BenchOp& op : ops::bench_ops()) {
    SCOPED_TRACE(op.name);
    int calls = 0;
    for (const bool mlp : {false, true}) {
      for (const ops::Backend backend : {ops::Backend::fused, ops::Backend::reference}) {
        ops::set_backend(backend);
        const ops::BenchCall call = op.make(tiny(mlp), at::kCPU, at::kFloat);
        if (call.arguments.empty()) continue;
        ++calls;
        const auto results = ops::call_op(op.name, call.arguments);
        EXPECT_GT(least_bytes(op.name, call.arguments, results), 0);
        EXPECT_GE(call.flops, 0);
      }
    }
    ops::set_backend(ops::Backend::fused);
    EXPECT_GT(calls, 0);
  }
}

TEST(BenchOps, LeastBytes) {
  const at::Tensor gate_up = at::ones({4, 16}), act = at::ones({4, 8});
  // Reads 64 floats, writes 32.
  EXPECT_EQ(least_bytes("hrm::swiglu", {gate_up}, {act}), 4 * (64 + 32));
  // The same tensor twice is read once.
  EXPECT_EQ(least_bytes("hrm::rms_norm_residual", {gate_up, gate_up, 1e-5}, {at::ones({4, 16})}), 4 * (64 + 64));
  // What is updated in place is read and written.
  EXPECT_EQ(least_bytes("hrm::linear_accumulate_", {at::ones({2, 3}), at::ones({5, 2}), at::ones({5, 3})}, {}),
            4 * (2 * 6 + 10 + 15));
}

TEST(BenchTimer, Spread) {
  const Spread spread = spread_of({5, 1, 3, 2, 4});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 5);
  EXPECT_DOUBLE_EQ(spread.p10, 1.4);
  EXPECT_DOUBLE_EQ(spread.p90, 4.6);
  EXPECT_EQ(spread_of({7}).median, 7);
  EXPECT_THROW(spread_of({}), Error);
}

// On a busy machine this thread can stand still between two marks: one of several tries has nothing there.
TEST(BenchTimer, TimelineMeasuresWhatLiesBetweenMarks) {
  const at::Tensor a = at::ones({200, 200});
  bool as_it_was = false;
  for (int tries = 0; tries < 20 && !as_it_was; ++tries) {
    Timeline timeline(at::kCPU);
    timeline.mark();
    for (int i = 0; i < 20; ++i) at::mm(a, a);
    timeline.mark();
    timeline.mark();
    const auto ms = timeline.intervals_ms();
    ASSERT_EQ(ms.size(), 2U);
    as_it_was = ms[0] > ms[1];
  }
  EXPECT_TRUE(as_it_was);
}

// Sleeps last at least as long as asked, on a busy machine longer: what is short shows in the shortest of several
// tries.
TEST(BenchTimer, TimeOfCallIsThatOfTheWork) {
  const auto time_of_sleep = [](int milliseconds) {
    return time_of_call(at::kCPU, 20, [&] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  };
  EXPECT_GE(time_of_sleep(20), 20);
  double shortest = time_of_sleep(1);
  for (int i = 0; i < 20 && shortest >= 20; ++i) shortest = std::min(shortest, time_of_sleep(1));
  EXPECT_GE(shortest, 1);
  EXPECT_LT(shortest, 20);
}

}  // namespace
}  // namespace hrm::commands
