#include "hrm/formats/trace_file.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "hrm/formats/gzip.h"
#include "hrm/formats/input_window.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

using TraceJson = nlohmann::json;

// As Kineto writes it: one call that starts two kernels of a replayed graph, which overlap on their stream, and a copy
// that was started before the recording. Not in order of time.
constexpr const char* kRaw = R"({
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "a GPU"}],
  "distributedInfo": {"rank":7},
  "baseTimeNanoseconds": 1000000,
  "traceEvents": [
    {"ph": "M", "name": "process_name", "ts": 5, "pid": 42, "tid": 0, "args": {"name": "hrm_train"}},
    {"ph": "M", "name": "process_name", "ts": 5, "pid": 42, "tid": 0, "args": {"name": "hrm_train"}},
    {"ph": "X", "cat": "kernel", "name": "second", "pid": 0, "tid": 7, "ts": 130.5, "dur": 30,
     "args": {"correlation": 9, "stream": 7}},
    {"ph": "X", "cat": "cpu_op", "name": "inner", "pid": 42, "tid": 43, "ts": 100, "dur": 5},
    {"ph": "X", "cat": "cpu_op", "name": "outer", "pid": 42, "tid": 43, "ts": 100, "dur": 20},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 42, "tid": 43, "ts": 104, "dur": 10,
     "args": {"correlation": 9}},
    {"ph": "X", "cat": "kernel", "name": "first", "pid": 0, "tid": 7, "ts": 120, "dur": 20,
     "args": {"correlation": 9, "stream": 7}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "pid": 0, "tid": 7, "ts": 170, "dur": 1,
     "args": {"correlation": 3, "stream": 7}},
    {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 42, "tid": 43, "ts": 104},
    {"ph": "f", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 120, "bp": "e"},
    {"ph": "f", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 130.5, "bp": "e"},
    {"ph": "s", "id": 1, "cat": "fwdbwd", "name": "fwdbwd", "pid": 42, "tid": 43, "ts": 100},
    {"ph": "s", "id": 2, "cat": "fwdbwd", "name": "fwdbwd", "pid": 42, "tid": 43, "ts": 101},
    {"ph": "f", "id": 2, "cat": "fwdbwd", "name": "fwdbwd", "pid": 42, "tid": 44, "ts": 111, "bp": "e"},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 42, "tid": 43, "ts": 102,
     "args": {"Total Allocated": 64, "Total Reserved": 128, "Device Id": 0, "Bytes": 64}}
  ],
  "traceName": "raw.json"
})";

class TraceFile : public ::testing::Test {
 protected:
  TraceJson written(const std::string& raw, const std::string& name = "trace.json.gz") {
    write_file(dir_ / "raw.json", as_bytes(raw));
    TraceInfo info;
    info.rank = 1;
    info.ranks = 2;
    info.backend = "nccl";
    info.process = 42;
    info.counters.push_back({"memory of the process", 1103000, {{"resident", 5}}});
    write_trace_file(dir_ / "raw.json", dir_ / name, info);
    text_ = InputWindow(dir_ / name).rest();
    return TraceJson::parse(text_);
  }
  // The events of one phase, in the order of the file.
  static std::vector<TraceJson> phase(const TraceJson& trace, const std::string& which) {
    std::vector<TraceJson> out;
    for (const TraceJson& event : trace.at("traceEvents")) {
      if (event.at("ph") == which) out.push_back(event);
    }
    return out;
  }

  const test::TempDir dir_;
  std::string text_;
};

TEST_F(TraceFile, SaysWhichRankItIs) {
  const TraceJson trace = written(kRaw);
  EXPECT_EQ(trace.at("distributedInfo"), (TraceJson{{"backend", "nccl"}, {"rank", 1}, {"world_size", 2}}));
  // HTA's pattern, and no other "rank" before it.
  EXPECT_EQ(text_.find("\"rank\""), text_.find("\"rank\": 1"));
  EXPECT_EQ(trace.at("deviceProperties").at(0).at("name"), "a GPU");
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), 1000000);
}

TEST_F(TraceFile, EventsAreInOrder) {
  const TraceJson trace = written(kRaw);
  std::vector<std::string> names;
  double last = 0;
  for (const TraceJson& event : phase(trace, "X")) names.push_back(event.at("name"));
  for (const TraceJson& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    EXPECT_GE(event.at("ts").get<double>(), last);
    last = event.at("ts").get<double>();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"outer", "inner", "cudaGraphLaunch", "first", "second", "Memcpy"}));
  EXPECT_EQ(phase(trace, "M").front().at("name"), "process_name");
}

TEST_F(TraceFile, EachArrowHasOneStartAndOneEnd) {
  const TraceJson trace = written(kRaw);
  const auto starts = phase(trace, "s"), ends = phase(trace, "f");
  ASSERT_EQ(starts.size(), 3u);
  ASSERT_EQ(ends.size(), 3u);
  std::map<int64_t, const TraceJson*> by_id;
  for (const TraceJson& start : starts) EXPECT_TRUE(by_id.emplace(start.at("id").get<int64_t>(), &start).second);
  std::vector<double> to_kernels;
  for (const TraceJson& end : ends) {
    ASSERT_EQ(by_id.count(end.at("id")), 1u);
    const TraceJson& start = *by_id.at(end.at("id"));
    EXPECT_EQ(start.at("cat"), end.at("cat"));
    EXPECT_EQ(end.at("bp"), "e");
    if (end.at("cat") != "ac2g") continue;
    to_kernels.push_back(end.at("ts"));
    EXPECT_EQ(start.at("ts"), 104);
    EXPECT_EQ(start.at("tid"), 43);
  }
  EXPECT_EQ(to_kernels, (std::vector<double>{120, 130.5})) << "the copy's start was not recorded";
}

TEST_F(TraceFile, KernelsThatOverlapGetTracksThatNest) {
  const TraceJson trace = written(kRaw);
  std::map<std::string, int64_t> track;
  for (const TraceJson& event : phase(trace, "X")) track[event.at("name")] = event.at("tid");
  EXPECT_EQ(track["first"], 7);
  EXPECT_EQ(track["second"], 1000007);
  EXPECT_EQ(track["Memcpy"], 7);
  const auto names = phase(trace, "M");
  ASSERT_EQ(names.size(), 3u) << "the second process_name is the first one again";
  EXPECT_EQ(names[1].at("args").at("name"), "stream 7, started early");
  EXPECT_EQ(names[1].at("tid"), 1000007);
  // The stream itself is still there for those who sum by it.
  for (const TraceJson& event : phase(trace, "X")) {
    if (event.at("cat") == "kernel") {
      EXPECT_EQ(event.at("args").at("stream"), 7);
    }
  }
}

TEST_F(TraceFile, HasCounterTracks) {
  const auto counters = phase(written(kRaw), "C");
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0].at("name"), "memory of GPU 0");
  EXPECT_EQ(counters[0].at("ts"), 102);
  EXPECT_EQ(counters[0].at("args"), (TraceJson{{"allocated", 64}, {"reserved", 128}}));
  EXPECT_EQ(counters[1].at("name"), "memory of the process");
  EXPECT_EQ(counters[1].at("ts"), 103);
  EXPECT_EQ(counters[1].at("pid"), 42);
}

TEST_F(TraceFile, PackedOnlyWhereTheNameSaysSo) {
  const TraceJson packed = written(kRaw), plain = written(kRaw, "trace.json");
  EXPECT_EQ(packed, plain);
  EXPECT_EQ(read_text(dir_ / "trace.json", ExitCode::data).front(), '{');
  EXPECT_EQ(read_text(dir_ / "trace.json.gz", ExitCode::data).substr(0, 2), "\x1F\x8B");
}

TEST_F(TraceFile, RefusesWhatIsNoTrace) {
  for (const char* raw : {"", "{", "[]", "{}", R"({"traceEvents": [{"ph": 3}]})"}) {
    test::expect_error(ExitCode::unexpected, {"raw.json"}, [&] { written(raw, "none"); });
  }
  test::expect_error(ExitCode::environment, {"cannot read", "missing.json"},
                     [&] { write_trace_file(dir_ / "missing.json", dir_ / "out", {}); });
  EXPECT_TRUE(phase(written(R"({"traceEvents": []})"), "X").empty());
}

// More than one buffer of zlib's, and text that does not shrink.
TEST(GzipWriter, WritesWhatWasGiven) {
  const test::TempDir dir;
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < 300'000; ++i) text += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  GzipWriter out(dir / "text.gz");
  for (size_t at = 0; at < text.size(); at += 70'001) out.write(std::string_view(text).substr(at, 70'001));
  out.write("");
  out.finish();
  EXPECT_EQ(InputWindow(dir / "text.gz").rest(), text);
  test::expect_error(ExitCode::environment, {"text.gz"}, [&] { GzipWriter(dir / "text.gz"); });
}

}  // namespace
}  // namespace hrm
