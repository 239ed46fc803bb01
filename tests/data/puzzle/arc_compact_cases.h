#pragma once
// Random ARC tasks, and folders of them in both forms.

#include <nlohmann/json.hpp>
#include <random>

#include "data/data_support.h"
#include "hrm/data/arc.h"

namespace hrm::data {

inline nlohmann::json random_grid(std::mt19937& random, int rows, int cols) {
  nlohmann::json grid = nlohmann::json::array();
  for (int r = 0; r < rows; ++r) {
    std::vector<int> row;
    for (int c = 0; c < cols; ++c) row.push_back(static_cast<int>(random() % kArcColours));
    grid.push_back(row);
  }
  return grid;
}

// Subsets "first", which is trained on, and "second", whose test pairs are the test split. Some grids have 1 or 30 rows
// or columns. `pairs`: at most this many demonstrations of a task.
inline ArcBuildOptions random_tasks(const std::filesystem::path& dir, int tasks, int pairs) {
  std::mt19937 random(7);
  for (const char* subset : {"first", "second"}) {
    for (int task = 0; task < tasks; ++task) {
      nlohmann::ordered_json json;
      const auto side = [&] {
        const uint32_t kind = random() % 6;
        return kind == 0 ? 1 : kind == 1 ? kArcSide : 1 + static_cast<int>(random() % kArcSide);
      };
      const auto list = [&](uint32_t most) {
        nlohmann::json part = nlohmann::json::array();
        for (uint32_t count = 1 + random() % most; count > 0; --count) {
          const int rows = side(), cols = side(), out_rows = side(), out_cols = side();
          part.push_back(
              {{"input", random_grid(random, rows, cols)}, {"output", random_grid(random, out_rows, out_cols)}});
        }
        return part;
      };
      const bool test_first = task % 3 == 1;
      json[test_first ? "test" : "train"] = list(test_first ? 2 : static_cast<uint32_t>(pairs));
      json[test_first ? "train" : "test"] = list(test_first ? static_cast<uint32_t>(pairs) : 2);
      write_text(dir / subset / cat(subset, "_", task, ".json"), json.dump());
    }
  }
  return {.subsets = {dir / "first", dir / "second"}, .test = {"second"}, .augment = 9, .seed = 3};
}

// A folder in its compact form.
inline std::shared_ptr<PuzzleDataset> compact_arc(const std::filesystem::path& dir, int tasks, int pairs,
                                                  const std::string& split) {
  ArcBuildOptions options = random_tasks(dir, tasks, pairs);
  options.compact = true;
  // Without the first subset each puzzle may have one example.
  if (pairs == 1) options.subsets = {dir / "second"};
  build_arc(options, dir / "compact");
  return open_dataset(dir / "compact", split, {});
}

}  // namespace hrm::data
