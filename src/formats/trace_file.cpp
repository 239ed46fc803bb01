#include "hrm/formats/trace_file.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/gzip.h"

namespace hrm {
namespace {

// Keys keep their order: viewers do not need it, readers of the file do.
using TraceJson = nlohmann::ordered_json;

constexpr const char* kEvents = "traceEvents";
constexpr int kEventDepth = 2;            // of an element of traceEvents, in nlohmann's count
constexpr int64_t kLaneStep = 1'000'000;  // between the track of a stream and those beside it

// An event that is ready to be written.
struct Line {
  double ts = 0, dur = 0;
  std::string text;
};

// Where an arrow begins or ends.
struct Anchor {
  TraceJson pid, tid;
  double ts = 0;
};

std::string event_text(const TraceJson& event) {
  return event.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
}

bool is_gpu_work(const std::string& category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset";
}

// Collects the events of one trace, and gives them back complete and in order.
class Events {
 public:
  void add(TraceJson event) {
    const std::string phase = event.value("ph", "");
    const std::string category = event.value("cat", "");
    if (phase == "M") {
      std::string text = event_text(event);
      if (seen_.insert(text).second) heads_.push_back(std::move(text));
    } else if (phase == "s" || phase == "t" || phase == "f") {
      // Those of ac2g are made anew: the profiler gives all kernels of a replayed graph one id.
      if (category != "ac2g") flows_[{category, event.value("id", TraceJson()).dump()}].push_back(std::move(event));
    } else if (phase == "X" && is_gpu_work(category)) {
      work_.push_back(std::move(event));
    } else {
      if (phase == "X" && (category == "cuda_runtime" || category == "cuda_driver")) remember_call(event);
      if (phase == "i" && event.value("name", "") == "[memory]") add_memory(event);
      push(event);
    }
  }

  void add_counters(const TraceInfo& info, int64_t base_ns) {
    for (const TraceCounter& counter : info.counters) {
      TraceJson values = TraceJson::object();
      for (const auto& [name, value] : counter.values) values[name] = value;
      push_counter(counter.track, info.process, static_cast<double>(counter.time_ns - base_ns) * 1e-3, values);
    }
  }

  // All lines: names of tracks first, then by time; of events that begin together, the outer one first.
  std::vector<std::string> lines() {
    finish_work();
    finish_flows();
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const Line& a, const Line& b) { return a.ts != b.ts ? a.ts < b.ts : a.dur > b.dur; });
    std::vector<std::string> out = std::move(heads_);
    out.reserve(out.size() + lines_.size());
    for (Line& line : lines_) out.push_back(std::move(line.text));
    return out;
  }

 private:
  void push(const TraceJson& event) {
    lines_.push_back({event.value("ts", 0.0), event.value("dur", 0.0), event_text(event)});
  }

  void push_counter(const std::string& track, const TraceJson& process, double ts, const TraceJson& values) {
    push(TraceJson{
        {"ph", "C"}, {"cat", "counter"}, {"name", track}, {"pid", process}, {"tid", 0}, {"ts", ts}, {"args", values}});
  }

  void push_flow(const char* phase, const std::string& category, const std::string& name, int64_t id,
                 const Anchor& at) {
    TraceJson event{{"ph", phase}, {"id", id},        {"pid", at.pid}, {"tid", at.tid},
                    {"ts", at.ts}, {"cat", category}, {"name", name}};
    if (*phase == 'f') event["bp"] = "e";  // ends at the event around it, not at the next one
    push(event);
  }

  void remember_call(const TraceJson& event) {
    const TraceJson& args = event.value("args", TraceJson::object());
    if (args.contains("correlation")) calls_[args["correlation"].get<int64_t>()] = anchor_of(event);
  }

  static Anchor anchor_of(const TraceJson& event) {
    return {event.value("pid", TraceJson()), event.value("tid", TraceJson()), event.value("ts", 0.0)};
  }

  // Kineto gives the bytes in use with each allocation.
  void add_memory(const TraceJson& event) {
    const TraceJson args = event.value("args", TraceJson::object());
    if (!args.contains("Total Allocated")) return;
    const int64_t device = args.value("Device Id", int64_t{-1});
    TraceJson values{{"allocated", args["Total Allocated"]}};
    if (device >= 0) values["reserved"] = args.value("Total Reserved", int64_t{0});
    push_counter(device < 0 ? "memory of tensors on the CPU" : cat("memory of GPU ", device),
                 event.value("pid", TraceJson()), event.value("ts", 0.0), values);
  }

  // Puts each kernel on a track in which it fits, and draws the arrows to it.
  void finish_work() {
    std::stable_sort(work_.begin(), work_.end(),
                     [](const TraceJson& a, const TraceJson& b) { return a.value("ts", 0.0) < b.value("ts", 0.0); });
    std::map<std::pair<std::string, int64_t>, std::vector<double>> ends;  // of each lane of a stream
    for (TraceJson& event : work_) {
      const double begin = event.value("ts", 0.0), end = begin + event.value("dur", 0.0);
      if (event.contains("tid") && event["tid"].is_number_integer()) {
        const int64_t stream = event["tid"].get<int64_t>();
        auto& lanes = ends[{event.value("pid", TraceJson()).dump(), stream}];
        // A nanosecond of rounding is no overlap.
        const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](double last) { return last <= begin + 1e-3; });
        const int64_t number = lane - lanes.begin();
        if (lane == lanes.end()) {
          lanes.push_back(end);
          if (number > 0) name_lane(event, stream, number);
        } else {
          *lane = std::max(*lane, end);
        }
        if (number > 0) event["tid"] = stream + number * kLaneStep;
      }
      const auto args = event.value("args", TraceJson::object());
      const auto call = args.contains("correlation") ? calls_.find(args["correlation"].get<int64_t>()) : calls_.end();
      if (call != calls_.end()) {
        ++arrows_;
        push_flow("s", "ac2g", "ac2g", arrows_, call->second);
        push_flow("f", "ac2g", "ac2g", arrows_, anchor_of(event));
      }
      push(event);
    }
  }

  void name_lane(const TraceJson& event, int64_t stream, int64_t number) {
    const auto head = [&](const char* name, const TraceJson& args) {
      heads_.push_back(event_text(TraceJson{{"name", name},
                                            {"ph", "M"},
                                            {"ts", event["ts"]},
                                            {"pid", event["pid"]},
                                            {"tid", stream + number * kLaneStep},
                                            {"args", args}}));
    };
    head("thread_name", {{"name", cat("stream ", stream, ", started early", number > 1 ? cat(" ", number) : "")}});
    head("thread_sort_index", {{"sort_index", stream}});
  }

  // Other arrows, those from forward to backward operations, where both ends were recorded.
  void finish_flows() {
    for (const auto& [key, events] : flows_) {
      const auto is = [](const char* phase) {
        return [phase](const TraceJson& e) { return e.value("ph", "") == phase; };
      };
      const auto start = std::find_if(events.begin(), events.end(), is("s"));
      const auto end = std::find_if(events.begin(), events.end(), is("f"));
      if (start == events.end() || end == events.end()) continue;
      const Anchor from = anchor_of(*start), to = anchor_of(*end);
      if (from.ts > to.ts) continue;
      ++arrows_;
      push_flow("s", key.first, start->value("name", ""), arrows_, from);
      push_flow("f", key.first, start->value("name", ""), arrows_, to);
    }
  }

  std::vector<std::string> heads_;
  std::set<std::string> seen_;
  std::vector<Line> lines_;
  std::vector<TraceJson> work_;
  std::unordered_map<int64_t, Anchor> calls_;
  std::map<std::pair<std::string, std::string>, std::vector<TraceJson>> flows_;
  int64_t arrows_ = 0;
};

// What stands around the events, without them.
TraceJson read_raw(const std::filesystem::path& raw, Events& events) {
  std::ifstream in(raw, std::ios::binary);
  require(in.is_open(), ExitCode::environment, "cannot read the profiler's trace '", raw.string(), "'");
  std::string top;
  const auto take = [&](int depth, TraceJson::parse_event_t what, TraceJson& parsed) {
    if (what == TraceJson::parse_event_t::key && depth == 1) top = parsed.get<std::string>();
    if (what != TraceJson::parse_event_t::object_end || depth != kEventDepth || top != kEvents) return true;
    events.add(std::move(parsed));
    return false;  // one event at a time in memory, not the whole tree
  };
  try {
    TraceJson rest = TraceJson::parse(in, take);
    require(rest.is_object() && rest.contains(kEvents), ExitCode::unexpected, "the profiler's trace '", raw.string(),
            "' holds no events");
    rest.erase(kEvents);
    return rest;
  } catch (const nlohmann::json::exception& e) {
    fail(ExitCode::unexpected, "the profiler's trace '", raw.string(), "' cannot be read: ", e.what());
  }
}

void write_lines(const std::vector<std::string>& lines, const TraceJson& rest, const TraceInfo& info,
                 const std::function<void(const std::string&)>& write) {
  // HTA looks for "rank", a colon and a blank, line by line, and takes the first.
  write(cat("{\n\"distributedInfo\": {\"backend\": ", TraceJson(info.backend).dump(), ", \"rank\": ", info.rank,
            ", \"world_size\": ", info.ranks, "},\n"));
  for (const auto& [key, value] : rest.items()) write(cat(TraceJson(key).dump(), ": ", event_text(value), ",\n"));
  write(cat("\"", kEvents, "\": [\n"));
  for (size_t i = 0; i < lines.size(); ++i) write(lines[i] + (i + 1 < lines.size() ? ",\n" : "\n"));
  write("]\n}\n");
}

}  // namespace

void write_trace_file(const std::filesystem::path& raw, const std::filesystem::path& file, const TraceInfo& info) {
  Events events;
  TraceJson rest = read_raw(raw, events);
  rest.erase("distributedInfo");
  rest.erase("traceName");
  events.add_counters(info, rest.value("baseTimeNanoseconds", int64_t{0}));
  const std::vector<std::string> lines = events.lines();
  if (file.extension() == ".gz") {
    GzipWriter out(file);
    write_lines(lines, rest, info, [&](const std::string& text) { out.write(text); });
    out.finish();
  } else {
    FileWriter out(file);
    write_lines(lines, rest, info, [&](const std::string& text) { out.write(as_bytes(text)); });
    out.finish();
  }
}

}  // namespace hrm
