#include "commands/dashboard/runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::dashboard {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLogBytes = 32 << 10;
constexpr uint64_t kTextBytes = 1 << 20;      // of config.json and environment.json
constexpr uint64_t kAnswerBytes = 128 << 10;  // from the end of a file of JSON lines
constexpr uint64_t kEvaluationBytes = 32 << 20;
constexpr uint64_t kQuickBytes = 64 << 20;  // of metrics.jsonl, read in short turns
constexpr size_t kAnswers = 20;             // shown of each file
constexpr size_t kAnswerFiles = 10;

// Bytes that are not UTF-8 become U+FFFD.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Number>
void append_number(std::string& out, Number number) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  out.append(text.data(), result.ptr);
}

template <class Number>
void append_list(std::string& out, const char* name, const std::vector<Number>& numbers) {
  out += '"';
  out += name;
  out += "\":[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, numbers[i]);
  }
  out += ']';
}

void append_points(std::string& out, const Points& points) {
  out += '{';
  append_list(out, "x", points.steps);
  out += ',';
  append_list(out, "y", points.values);
  if (!points.means.empty()) {
    out += ',';
    append_list(out, "mx", points.mean_steps);
    out += ',';
    append_list(out, "my", points.means);
  }
  if (!points.not_finite.empty()) {
    out += ',';
    append_list(out, "bad", points.not_finite);
  }
  out += '}';
}

std::string metrics_text(RunReader& reader, const MetricsRequest& request, bool done, const std::string& version) {
  Json head;
  head["generation"] = reader.generation();
  head["version"] = version;
  head["done"] = done;
  head["bytes_read"] = reader.bytes_read();
  head["bytes"] = reader.file_bytes();
  head["lines"] = reader.good_lines();
  head["damaged"] = reader.damaged_lines();
  head["left_out"] = reader.left_out();
  head["first"] = reader.first_step();
  head["last"] = reader.last_step();
  head["texts"] = Json::object();
  std::string keys;
  std::vector<uint32_t> wanted = request.keys;
  if (request.all_keys) wanted.clear();
  for (uint32_t key = 0; key < reader.keys().size(); ++key) {
    const Curve& curve = reader.curve(key);
    if (key > 0) keys += ',';
    keys += "[" + text_of(reader.keys()[key]) + ",";
    append_number(keys, curve.count());
    keys += ',';
    append_number(keys, curve.not_finite());
    keys += ',';
    if (curve.has_latest()) {
      append_number(keys, curve.latest());
    } else {
      keys += "null";
    }
    keys += ']';
    if (request.all_keys && !curve.empty()) wanted.push_back(key);
    for (const LoggedText& text : reader.texts(key)) {
      head["texts"][reader.keys()[key]].push_back({text.step, text.text});
    }
  }
  std::string out = text_of(head);
  out.pop_back();
  out += ",\"keys\":[" + keys + "],\"points\":{";
  if (request.all_keys || request.generation == reader.generation()) {
    const size_t columns = std::clamp<size_t>(request.columns, 16, 4000);
    const std::vector<Points> points = reader.points(wanted, request.from, request.to, columns);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (i > 0) out += ',';
      out += '"';
      append_number(out, wanted[i]);
      out += "\":";
      append_points(out, points[i]);
    }
  }
  return out + "}}";
}

std::string start_of_text(int fd, uint64_t most) {
  const std::string text = read_end(fd, most + 1);
  return text.size() > most ? "" : text;
}

// The last lines of what solve or generate printed with --format jsonl.
Json last_answers(const std::string& text, bool from_start) {
  Json lines = Json::array();
  size_t begin = 0;
  std::vector<std::string_view> all;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    all.push_back(std::string_view(text).substr(begin, end - begin));
  }
  if (!from_start && !all.empty()) all.erase(all.begin());
  if (all.size() > kAnswers) all.erase(all.begin(), all.end() - kAnswers);
  for (const std::string_view line : all) {
    try {
      lines.push_back(Json(parse_json(line, "line", ExitCode::data, {.bytes = kAnswerBytes, .depth = 8})));
    } catch (const Error&) {
      // A damaged line has nothing to show.
    }
  }
  return lines;
}

// The first prompts of eval.json with some of their completions.
Json first_samples(const std::string& text, const std::string& name) {
  Json samples = Json::array();
  const auto root = parse_json(text, name, ExitCode::data, {.bytes = kEvaluationBytes, .depth = 8});
  const auto found = root.is_object() ? root.find("samples") : root.end();
  if (!root.is_object() || found == root.end() || !found->is_array()) return samples;
  for (const auto& sample : *found) {
    if (samples.size() == kAnswers) break;
    if (!sample.is_object()) continue;
    Json shown;
    for (const char* member : {"prompt", "reference", "greedy", "sampled", "right"}) {
      const auto value = sample.find(member);
      if (value == sample.end()) continue;
      shown[member] = *value;
      if (shown[member].is_array() && shown[member].size() > kAnswers) {
        shown[member].erase(shown[member].begin() + kAnswers, shown[member].end());
      }
    }
    samples.push_back(std::move(shown));
  }
  return samples;
}

Json answers_of(const RunFiles& files, const std::string& run) {
  Json out = Json::array();
  const auto show = [&](const FoundFile& file, const auto& read) {
    if (out.size() >= kAnswerFiles) return;
    const Descriptor opened = files.open(run, file.name);
    if (!opened) return;
    Json shown;
    shown["file"] = printable(file.name);
    try {
      shown["items"] = read(opened.get());
    } catch (const Error& error) {
      shown["problem"] = error.what();
    }
    out.push_back(std::move(shown));
  };
  for (const FoundFile& file : files.files(run, "eval.json")) {
    if (file.name != "eval.json" && !file.name.ends_with("/eval.json")) continue;
    show(file, [&](int fd) {
      const std::string text = start_of_text(fd, kEvaluationBytes);
      require(!text.empty(), ExitCode::data, "the file has more than ", human_bytes(kEvaluationBytes),
              "; 'hrm_train report' reads it");
      return first_samples(text, printable(file.name));
    });
  }
  for (const FoundFile& file : files.files(run, ".jsonl")) {
    if (file.name == "metrics.jsonl") continue;
    show(file, [&](int fd) { return last_answers(read_end(fd, kAnswerBytes), file.bytes <= kAnswerBytes); });
  }
  return out;
}

std::string details_text(const RunFiles& files, const std::string& run) {
  Json out;
  for (const char* name : {"config", "environment"}) {
    const Descriptor file = files.open(run, std::string(name) + ".json");
    out[name] = file ? start_of_text(file.get(), kTextBytes) : "";
  }
  const Descriptor log = files.open(run, "log/rank_0.log");
  out["log"] = log ? read_end(log.get(), kLogBytes) : "";
  out["answers"] = answers_of(files, run);
  return text_of(out);
}

Json listed(const FoundRun& run, const std::filesystem::path& folder) {
  // The folder itself has the name that the user gave it.
  const std::string own = std::filesystem::weakly_canonical(folder).filename().string();
  return {{"id", digest_hex(hrm::as_bytes(run.name))},
          {"name", printable(run.name == "." ? own : run.name)},
          {"bytes", run.bytes},
          {"modified", run.modified}};
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

const std::vector<FoundRun>& Runs::found_runs() {
  const auto now = std::chrono::steady_clock::now();
  if (looked_ && now - *looked_ < std::chrono::seconds(1)) return found_;
  found_ = files_.list();
  by_id_.clear();
  for (size_t i = 0; i < found_.size(); ++i) by_id_.emplace(digest_hex(hrm::as_bytes(found_[i].name)), i);
  looked_ = now;
  return found_;
}

std::optional<FoundRun> Runs::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const std::vector<FoundRun>& runs = found_runs();
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return runs[found->second];
}

std::shared_ptr<Runs::Open> Runs::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const auto& one) { return one.first == name; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    open_.emplace_front(name, std::make_shared<Open>([this, name] { return files_.open(name, "metrics.jsonl"); }));
    if (open_.size() > kOpen) open_.pop_back();
  }
  return open_.front().second;
}

std::string Runs::list() {
  const std::lock_guard lock(mutex_);
  Json out = {{"folder", printable(files_.folder().string())}, {"now", seconds_now()}, {"runs", Json::array()}};
  for (const FoundRun& run : found_runs()) out["runs"].push_back(listed(run, files_.folder()));
  out["cut"] = found_.size() >= RunFiles::kMaxRuns;
  return text_of(out);
}

std::optional<std::string> Runs::metrics(const std::string& id, const MetricsRequest& request,
                                         std::chrono::milliseconds budget) {
  const std::optional<FoundRun> run = find(id);
  if (!run) return std::nullopt;
  const std::shared_ptr<Open> opened = open(run->name);
  const std::lock_guard lock(opened->mutex);
  RunReader& reader = opened->reader;
  // The first curves are to be seen at once, however long the file.
  const bool done = reader.advance(reader.bytes_read() < kQuickBytes ? budget / 4 : budget);
  const std::string version = cat(reader.generation(), ".", reader.bytes_read(), ".", done);
  if (version == request.have) return "";
  return metrics_text(reader, request, done, version);
}

std::optional<std::string> Runs::details(const std::string& id) {
  const std::optional<FoundRun> run = find(id);
  if (!run) return std::nullopt;
  return details_text(files_, run->name);
}

std::string Runs::everything(size_t columns) {
  std::string out = text_of({{"folder", printable(files_.folder().string())}, {"now", seconds_now()}});
  out.pop_back();
  out += ",\"runs\":[";
  bool first = true;
  for (const FoundRun& run : files_.list()) {
    // Not kept: an export may be of many runs.
    RunReader reader([&] { return files_.open(run.name, "metrics.jsonl"); });
    while (!reader.advance(std::chrono::milliseconds(1000))) {
    }
    MetricsRequest request;
    request.all_keys = true;
    request.columns = columns;
    if (!std::exchange(first, false)) out += ',';
    std::string entry = text_of(listed(run, files_.folder()));
    entry.pop_back();
    out += entry + ",\"metrics\":" + metrics_text(reader, request, true, "exported") +
           ",\"details\":" + details_text(files_, run.name) + "}";
  }
  return out + "]}";
}

}  // namespace hrm::dashboard
