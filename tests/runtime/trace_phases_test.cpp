#include "runtime/trace_phases.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hrm {
namespace {

using Json = nlohmann::json;

// An event as Kineto writes it.
std::string event(const std::string& category, const std::string& name, int stream, const std::string& start,
                  const std::string& duration) {
  return "  {\n    \"ph\": \"X\", \"cat\": \"" + category + "\", \"name\": \"" + name +
         "\", \"pid\": 0, \"tid\": " + std::to_string(stream) + ",\n    \"ts\": " + start + ", \"dur\": " + duration +
         ",\n    \"args\": {\n      \"correlation\": 7, \"grid\": [1, 1, 1]\n    }\n  },\n";
}

std::string mark_event(const std::string& phase, int stream, const std::string& start, const std::string& duration) {
  const std::string name = phase.empty() ? "hrm::cuda::phase_begin(long*)"
                                         : "void hrm::cuda::phase_end<hrm::cuda::phases::" + phase + ">(long*, int)";
  return event("kernel", name, stream, start, duration);
}

std::string trace_of(const std::string& events) {
  return "{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n" + events +
         "  {\n    \"name\": \"process_name\", \"ph\": \"M\", \"ts\": 0, \"pid\": 0, \"tid\": 0\n  }\n  ]\n}\n";
}

TEST(TracePhases, ARangeEndsAtEachMark) {
  const std::string events = mark_event("", 7, "1000.000", "2") + event("kernel", "gemm", 7, "1002.500", "10") +
                             // A host call of this name is no mark.
                             event("cpu_op", "phase_end<hrm::cuda::phases::backward>", 7, "1005.000", "1") +
                             // Not in the order of time.
                             mark_event("optimizer_step", 9, "1040.250", "1.750") +
                             mark_event("forward", 7, "1012.500", "1.500");
  const Json made = Json::parse(with_phase_ranges(trace_of(events)));
  std::vector<Json> ranges;
  for (const Json& one : made["traceEvents"]) {
    if (one.value("cat", "") == "gpu_user_annotation") ranges.push_back(one);
  }
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0]["name"], "forward");
  const Json track = ranges[0]["tid"];
  EXPECT_NE(track, 7);
  EXPECT_DOUBLE_EQ(ranges[0]["ts"].get<double>(), 1002);
  EXPECT_DOUBLE_EQ(ranges[0]["dur"].get<double>(), 12);
  EXPECT_EQ(ranges[1]["name"], "optimizer.step");
  EXPECT_EQ(ranges[1]["tid"], track);
  EXPECT_DOUBLE_EQ(ranges[1]["ts"].get<double>(), 1014);
  EXPECT_DOUBLE_EQ(ranges[1]["dur"].get<double>(), 28);
  EXPECT_EQ(made["traceEvents"].size(), 10U) << "all others are kept, and the track has a name";
  EXPECT_EQ(made["traceEvents"][0]["args"]["name"], "phases");
  EXPECT_EQ(made["traceEvents"][0]["tid"], track);
}

TEST(TracePhases, OtherTracesStayAsTheyAre) {
  for (const std::string& trace :
       {std::string(), std::string("{\"traceEvents\": 3}"), trace_of(event("kernel", "gemm", 7, "1", "2")),
        trace_of(mark_event("forward", 7, "1", "2")),
        trace_of(mark_event("", 7, "x", "2") + mark_event("forward", 7, "y", "2"))}) {
    EXPECT_EQ(with_phase_ranges(trace), trace);
  }
}

TEST(TracePhases, TornTextIsNoTrap) {
  const std::string whole = trace_of(mark_event("", 7, "1", "2") + mark_event("forward", 7, "5", "2"));
  for (size_t size = 0; size < whole.size(); ++size) with_phase_ranges(whole.substr(0, size));
}

}  // namespace
}  // namespace hrm
