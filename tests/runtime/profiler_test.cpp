#include "hrm/runtime/profiler.h"
#include "hrm/runtime/kernel_groups.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "hrm/runtime/nvtx.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

using nlohmann::json;

// How often each operation stands in a Chrome trace, as complete events with a duration.
std::map<std::string, int> operations_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  const json trace = json::parse(in);
  std::map<std::string, int> count;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X" || event.value("cat", "") != "cpu_op") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    ++count[event.at("name").get<std::string>()];
  }
  return count;
}

TEST(StepTrace, HoldsTheOperationsInBetween) {
  const test::TempDir dir;
  const at::Tensor a = at::ones({8, 8});
  at::tanh(a);  // before: must not be in it
  StepTrace trace(at::kCPU);
  at::Tensor b = a;
  for (int i = 0; i < 3; ++i) b = at::mm(a, b);
  trace.finish(dir / "trace.json");
  at::sin(a);  // after

  const auto count = operations_of(dir / "trace.json");
  ASSERT_EQ(count.count("aten::mm"), 1U);
  EXPECT_EQ(count.at("aten::mm"), 3);
  EXPECT_EQ(count.count("aten::tanh"), 0U);
  EXPECT_EQ(count.count("aten::sin"), 0U);
}

// The backward pass runs in autograd's own thread where the device is a GPU; its nodes must be recorded as well.
TEST(StepTrace, HoldsTheBackwardPass) {
  const test::TempDir dir;
  const at::Tensor a = at::ones({4, 4}).requires_grad_();
  StepTrace trace(at::kCPU);
  at::mm(a, a).sum().backward();
  trace.finish(dir / "trace.json");
  const auto count = operations_of(dir / "trace.json");
  EXPECT_EQ(count.count("MmBackward0"), 1U);
  EXPECT_EQ(count.at("aten::mm"), 3);  // one forward, two backward
}

TEST(StepTrace, TwiceInOneProcess) {
  const test::TempDir dir;
  for (const char* name : {"first.json", "second.json"}) {
    StepTrace trace(at::kCPU);
    at::exp(at::ones({2}));
    trace.finish(dir / name);
    EXPECT_EQ(operations_of(dir / name).at("aten::exp"), 1) << name;
  }
}

TEST(StepTrace, SaysWhereItCannotWrite) {
  const test::TempDir dir;
  StepTrace trace(at::kCPU);
  at::exp(at::ones({2}));
  test::expect_error(ExitCode::environment, {"cannot write the trace", "missing/trace.json"},
                     [&] { trace.finish(dir / "missing/trace.json"); });
}

TEST(StepTrace, WhatCannotBeReplacedStaysAndDoesNotPassForTheTrace) {
  const test::TempDir dir;
  std::filesystem::create_directories(dir / "trace.json/old");
  StepTrace trace(at::kCPU);
  at::exp(at::ones({2}));
  test::expect_error(ExitCode::environment, {"cannot write the trace", "trace.json"},
                     [&] { trace.finish(dir / "trace.json"); });
  EXPECT_TRUE(std::filesystem::is_directory(dir / "trace.json/old"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()), 1);
}

// All complete events of a Chrome trace by category and name.
json events_of(const std::filesystem::path& file, const std::string& category, const std::string& name) {
  std::ifstream in(file);
  json found = json::array();
  const json trace = json::parse(in);
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == category && event.value("name", "") == name) found.push_back(event);
  }
  return found;
}

TEST(StepTrace, RecordsWhatItIsAskedFor) {
  const test::TempDir dir;
  const auto trace_with = [&](const TraceOptions& options) {
    StepTrace trace(at::kCPU, options);
    at::mm(at::ones({3, 4}), at::ones({4, 5}));
    trace.finish(dir / "trace.json");
    return events_of(dir / "trace.json", "cpu_op", "aten::mm").at(0);
  };
  EXPECT_FALSE(trace_with({}).at("args").contains("Input Dims"));
  EXPECT_TRUE(events_of(dir / "trace.json", "cpu_instant_event", "[memory]").empty());

  const json shapes = trace_with({.shapes = true});
  EXPECT_EQ(shapes.at("args").at("Input Dims").dump(), "[[3,4],[4,5]]");

  trace_with({.memory = true});
  EXPECT_FALSE(events_of(dir / "trace.json", "cpu_instant_event", "[memory]").empty());
  EXPECT_FALSE(events_of(dir / "trace.json", "counter", "memory of tensors on the CPU").empty());
}

TEST(StepTrace, RangesAreAnnotations) {
  const test::TempDir dir;
  { const ProfilerRange before(RangeKind::step, "before"); }
  StepTrace trace(at::kCPU);
  trace.begin_step(7);
  {
    const ProfilerRange step(RangeKind::step, "train.step");
    const ProfilerRange data(RangeKind::data, "data.next_batch");
    at::exp(at::ones({2}));
  }
  trace.finish(dir / "trace.json");
  { const ProfilerRange after(RangeKind::step, "after"); }
  const json step = events_of(dir / "trace.json", "user_annotation", "train.step");
  const json op = events_of(dir / "trace.json", "cpu_op", "aten::exp");
  ASSERT_EQ(step.size(), 1U);
  ASSERT_EQ(op.size(), 1U);
  EXPECT_EQ(events_of(dir / "trace.json", "user_annotation", "data.next_batch").size(), 1U);
  EXPECT_LE(step[0].at("ts").get<double>(), op[0].at("ts").get<double>());
  EXPECT_GE(step[0].at("ts").get<double>() + step[0].at("dur").get<double>(), op[0].at("ts").get<double>());
  EXPECT_TRUE(events_of(dir / "trace.json", "user_annotation", "before").empty());
  const json outer = events_of(dir / "trace.json", "user_annotation", "ProfilerStep#7");
  ASSERT_EQ(outer.size(), 1U);
  EXPECT_LE(outer[0].at("ts").get<double>(), step[0].at("ts").get<double>());
  EXPECT_GE(outer[0].at("dur").get<double>(), step[0].at("dur").get<double>());
  // Two ranges with two edges each, within the step by the clock of the trace.
  const json memory = events_of(dir / "trace.json", "counter", "memory of the process");
  ASSERT_EQ(memory.size(), 4U);
  EXPECT_GT(memory[0].at("args").at("resident").get<int64_t>(), 1 << 20);
  for (const json& sample : memory) {
    EXPECT_GE(sample.at("ts").get<double>(), outer[0].at("ts").get<double>());
    EXPECT_LE(sample.at("ts").get<double>(), outer[0].at("ts").get<double>() + outer[0].at("dur").get<double>());
  }
}

TEST(StepTrace, ProfileSumsEachOperationWithoutItsChildren) {
  const at::Tensor a = at::ones({64, 64}).requires_grad_();
  StepTrace trace(at::kCPU);
  for (int i = 0; i < 5; ++i) at::mm(a, a).sum().backward();
  const StepProfile profile = trace.profile();
  EXPECT_FALSE(profile.gpu);
  EXPECT_TRUE(profile.waits.empty());
  EXPECT_EQ(profile.launches, 0);
  const auto row = [&](const std::vector<ProfileRow>& rows, const std::string& name) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const ProfileRow& r) { return r.name == name; });
    return found == rows.end() ? ProfileRow{} : *found;
  };
  EXPECT_EQ(row(profile.by_name, "aten::mm").calls, 15);
  EXPECT_GT(row(profile.by_name, "aten::mm").ms, 0);
  EXPECT_EQ(row(profile.by_group, "matrix products").calls, 15);
  double sum = 0, groups = 0;
  for (const ProfileRow& r : profile.by_name) sum += r.ms;
  for (const ProfileRow& r : profile.by_group) groups += r.ms;
  EXPECT_NEAR(sum, groups, 1e-9);
  // Self times on one thread cannot overlap.
  EXPECT_NEAR(sum, profile.busy_ms, 0.01 * sum);
  EXPECT_GE(profile.span_ms, profile.busy_ms);
  EXPECT_TRUE(std::is_sorted(profile.by_name.begin(), profile.by_name.end(),
                             [](const ProfileRow& x, const ProfileRow& y) { return x.ms > y.ms; }));
}

// This function's name must be found in the stacks, although the program exports no symbols.
[[gnu::noinline]] at::Tensor function_that_calls_exp(const at::Tensor& x) {
  return at::exp(x).add_(1);
}

TEST(StepTrace, WritesCallStacksForFlameGraphs) {
  const test::TempDir dir;
  StepTrace trace(at::kCPU, {.stacks = true});
  const at::Tensor x = at::ones({2});
  function_that_calls_exp(x);
  trace.finish(dir / "trace.json");
  std::ifstream in(dir / "trace_stacks.txt");
  bool found = false;
  for (std::string line; std::getline(in, line);) {
    const size_t blank = line.rfind(' ');
    ASSERT_NE(blank, std::string::npos) << line;
    EXPECT_EQ(line.find_first_not_of("0123456789", blank + 1), std::string::npos) << line;
    const std::string stack = line.substr(0, blank);
    found = found || (stack.find("function_that_calls_exp;aten::exp") != std::string::npos);
    EXPECT_EQ(stack.find("c10::"), std::string::npos) << line;
  }
  EXPECT_TRUE(found);
}

TEST(StepTrace, StopsWhenItIsDropped) {
  const test::TempDir dir;
  {
    const StepTrace dropped(at::kCPU);
    at::exp(at::ones({2}));
  }
  StepTrace trace(at::kCPU);
  at::sin(at::ones({2}));
  trace.finish(dir / "trace.json");
  EXPECT_EQ(operations_of(dir / "trace.json").count("aten::exp"), 0U);
  EXPECT_EQ(operations_of(dir / "trace.json").at("aten::sin"), 1);
}

TEST(KernelGroup, NamesOfLibraries) {
  EXPECT_EQ(kernel_group("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"), "matrix products");
  EXPECT_EQ(kernel_group("void at::native::vectorized_elementwise_kernel<4, at::native::silu_functor>"), "elementwise");
  EXPECT_EQ(kernel_group("Memcpy DtoD (Device -> Device)"), "copies and casts");
  EXPECT_EQ(kernel_group("pytorch_flash::flash_fwd_kernel<...>"), "attention");
  EXPECT_EQ(kernel_group("aten::mm"), "matrix products");
  EXPECT_EQ(kernel_group("something new"), "other");
}

TEST(KernelGroup, EntriesOfOursComeFirstTheLongestPartBeforeOthers) {
  const KernelGroups own{{"test_gemm", "a product of the test"}, {"test_gemm_norm", "a norm of the test"}};
  EXPECT_EQ(kernel_group("void test_gemm<4>(Params)"), "a product of the test");
  EXPECT_EQ(kernel_group("void test_gemm_norm<4>(Params)"), "a norm of the test");
}

TEST(KernelGroup, ShortNames) {
  EXPECT_EQ(short_kernel_name("void hrm::ops::cuda::(anonymous namespace)::forward<8>(hrm::ops::cuda::SwigluForward)"),
            "forward<8>(SwigluForward)");
  EXPECT_EQ(short_kernel_name("nvjet_tst"), "nvjet_tst");
}

}  // namespace
}  // namespace hrm
