#include "hrm/runtime/profiler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace hrm
