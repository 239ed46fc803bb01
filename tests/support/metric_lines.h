#pragma once
// What a run wrote to metrics.jsonl.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hrm::test {

// The lines that have this metric, in their order.
inline std::vector<nlohmann::json> metric_lines(const std::filesystem::path& run, const std::string& key) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains(key)) lines.push_back(json);
  }
  return lines;
}

}  // namespace hrm::test
