#include "data/puzzle/arc_files.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr JsonLimits kArcLimits{.bytes = size_t{1} << 30, .depth = 8};
constexpr std::string_view kChallenges = "challenges.json", kSolutions = "solutions.json";

// Checked within limits, and then in the order of the file.
Json parse_ordered_text(std::string_view text, const std::string& origin) {
  require(!text.starts_with("\xEF\xBB\xBF"), ExitCode::data, origin,
          ": begins with a byte order mark, which JSON does not allow; save it as UTF-8 without one");
  parse_json(text, origin, ExitCode::data, kArcLimits);
  Json json = Json::parse(text);
  require(json.is_object(), ExitCode::data, origin, ": is not a JSON object of tasks");
  return json;
}

Json parse_ordered(const fs::path& file) {
  return parse_ordered_text(read_text(file, ExitCode::data, kArcLimits.bytes), file.string());
}

ArcGrid grid_of(const Json& json, const std::string& where) {
  require(json.is_array() && !json.empty() && json[0].is_array(), ExitCode::data, where,
          " is not a list of rows of colours");
  ArcGrid grid{static_cast<int>(std::min<size_t>(json.size(), 1000)),
               static_cast<int>(std::min<size_t>(json[0].size(), 1000)),
               {}};
  require(grid.rows <= kArcSide && grid.cols >= 1 && grid.cols <= kArcSide, ExitCode::data, where, " has ", json.size(),
          " rows and ", json[0].size(), " columns; a grid has 1 to ", kArcSide, " of each");
  for (size_t r = 0; r < json.size(); ++r) {
    require(json[r].is_array() && json[r].size() == json[0].size(), ExitCode::data, where, ": row ", r + 1,
            json[r].is_array() ? cat(" has ", json[r].size(), " columns, the first has ", json[0].size())
                               : std::string(" is not a list of colours"));
    for (size_t c = 0; c < json[r].size(); ++c) {
      const Json& cell = json[r][c];
      require(cell.is_number_integer() && cell.get<int64_t>() >= 0 && cell.get<int64_t>() < kArcColours, ExitCode::data,
              where, ": row ", r + 1, ", column ", c + 1, " is ", printable_start(cell.dump()),
              ", not a colour from 0 to 9");
      grid.cells.push_back(static_cast<uint8_t>(cell.get<int64_t>()));
    }
  }
  return grid;
}

std::vector<ArcPair> pairs_of(const Json& task, const char* part, const std::string& where) {
  require(task.is_object() && task.contains(part) && task[part].is_array() && !task[part].empty(), ExitCode::data,
          where, " has no list of pairs \"", part, "\"");
  std::vector<ArcPair> pairs;
  for (const Json& pair : task[part]) {
    const std::string at = cat(where, ", ", part, " pair ", pairs.size() + 1);
    for (const char* side : {"input", "output"}) {
      require(pair.is_object() && pair.contains(side), ExitCode::data, at, " has no \"", side, "\"");
    }
    pairs.push_back({grid_of(pair["input"], at + ", input"), grid_of(pair["output"], at + ", output")});
  }
  return pairs;
}

ArcSource source_of(const std::string& name, Json json, const std::string& where) {
  require(is_utf8(name) && name.find("|||") == std::string::npos, ExitCode::data, where, ": the task's name '",
          printable_start(name), "' is not UTF-8 or contains |||, which separates the parts of a copy's name");
  ArcSource source{.task = {.name = name, .train = {}, .test = {}}, .json = std::move(json)};
  source.task.train = pairs_of(source.json, "train", where);
  source.task.test = pairs_of(source.json, "test", where);
  source.task.test_first = source.json.begin().key() == "test";
  return source;
}

// Test outputs that are missing become [[0]].
void fill_outputs(Json& task) {
  if (!task.is_object() || !task.contains("test") || !task["test"].is_array()) return;
  for (Json& pair : task["test"]) {
    if (pair.is_object() && !pair.contains("output")) pair["output"] = Json::array({Json::array({0})});
  }
}

// Puts the outputs of the solutions file into the tasks, or [[0]].
void add_outputs(Json& tasks, const fs::path& challenges, bool unsolved) {
  std::string file = challenges.string();
  file.replace(file.size() - kChallenges.size(), kChallenges.size(), kSolutions);
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    if (!unsolved) return;  // outputs may stand in the tasks; where not, that is said there
    for (auto& [name, task] : tasks.items()) fill_outputs(task);
    return;
  }
  const Json solutions = parse_ordered(file);
  for (auto& [name, task] : tasks.items()) {
    require(solutions.contains(name) && solutions[name].is_array(), ExitCode::data, file, ": has no solutions of task ",
            printable_start(name));
    if (!task.is_object() || !task.contains("test") || !task["test"].is_array()) continue;
    require(solutions[name].size() == task["test"].size(), ExitCode::data, file, ": has ", solutions[name].size(),
            " solutions of task ", printable_start(name), ", which has ", task["test"].size(), " test pairs");
    for (size_t i = 0; i < task["test"].size(); ++i) {
      if (task["test"][i].is_object()) task["test"][i]["output"] = solutions[name][i];
    }
  }
}

}  // namespace

ArcSource parse_arc_source(std::string_view text, const std::string& name, const std::string& origin, bool unsolved) {
  Json task = parse_ordered_text(text, origin);
  if (unsolved) fill_outputs(task);
  return source_of(name, std::move(task), origin);
}

std::vector<ArcSource> read_arc_sources(const fs::path& path, bool unsolved) {
  std::vector<ArcSource> sources;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    require(!files.empty(), ExitCode::data, path.string(), ": has no TASK.json");
    for (const fs::path& file : files) {
      const std::string text = read_text(file, ExitCode::data, kArcLimits.bytes);
      sources.push_back(parse_arc_source(text, file.stem().string(), file.string(), unsolved));
    }
    return sources;
  }
  require(path.string().ends_with(kChallenges), ExitCode::data, "'", printable(path.string()),
          "' is neither a folder of ARC tasks nor a file NAME_", kChallenges);
  Json tasks = parse_ordered(path);
  add_outputs(tasks, path, unsolved);
  for (auto& [name, task] : tasks.items()) {
    sources.push_back(source_of(name, task, cat(path.string(), ": task ", printable_start(name))));
  }
  require(!sources.empty(), ExitCode::data, path.string(), ": has no task");
  return sources;
}

std::vector<ArcTask> read_arc_tasks(const fs::path& path, bool unsolved) {
  std::vector<ArcTask> tasks;
  for (ArcSource& source : read_arc_sources(path, unsolved)) tasks.push_back(std::move(source.task));
  return tasks;
}

std::vector<ArcTask> read_arc_test_puzzles(const fs::path& file) {
  std::vector<ArcTask> tasks;
  const Json json = parse_ordered(file);
  for (const auto& [name, task] : json.items()) {
    tasks.push_back(source_of(name, task, cat(file.string(), ": task ", printable_start(name))).task);
  }
  return tasks;
}

std::string arc_subset_name(const fs::path& path) {
  const fs::path plain = path.filename().empty() ? path.parent_path() : path;
  std::string name = plain.filename().string();
  const std::string end = cat("_", kChallenges);
  if (!name.ends_with(end)) return name;
  name.resize(name.size() - end.size());
  return name.substr(name.rfind('_') + 1);
}

std::string python_json(const Json& json) {
  const auto quoted = [](const std::string& text) { return Json(text).dump(-1, ' ', /*ensure_ascii=*/true); };
  std::string text;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      text += cat(text.empty() ? "{" : ", ", quoted(key), ": ", python_json(value));
    }
    return text.empty() ? "{}" : text + "}";
  }
  if (json.is_array()) {
    for (const Json& value : json) text += cat(text.empty() ? "[" : ", ", python_json(value));
    return text.empty() ? "[]" : text + "]";
  }
  return json.dump(-1, ' ', /*ensure_ascii=*/true);
}

}  // namespace hrm::data
