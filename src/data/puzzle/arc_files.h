#pragma once
// ARC tasks in JSON, with the order of the file.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/data/arc.h"

namespace hrm::data {

// A task and its JSON, with the outputs of the solutions file.
struct ArcSource {
  ArcTask task;
  nlohmann::ordered_json json;
};
// One TASK.json. `origin` names it in errors.
ArcSource parse_arc_source(std::string_view text, const std::string& name, const std::string& origin, bool unsolved);
// read_arc_tasks, with the JSON.
std::vector<ArcSource> read_arc_sources(const std::filesystem::path& path, bool unsolved);

// As Python's json.dumps: ", " and ": " between, and no characters beyond ASCII.
std::string python_json(const nlohmann::ordered_json& json);

}  // namespace hrm::data
