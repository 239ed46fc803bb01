// Every file in configs/.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "config/consistency.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "support/paths.h"

namespace hrm::config {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> recipes() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_dir()) / "configs")) {
    if (entry.is_regular_file() && entry.path().extension() == ".json") files.push_back(entry.path());
  }
  return files;
}

TEST(Recipes, EachLoadsAndCanTrain) {
  const auto files = recipes();
  EXPECT_GE(files.size(), 6u);
  std::set<std::string> names;
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const LoadedConfig loaded = load_config({file.string()}, {});
    EXPECT_NO_THROW(validate(loaded));
    // The run is called as its recipe, and no two recipes write into one folder.
    EXPECT_EQ(loaded.config.run.name, file.stem().string());
    EXPECT_TRUE(names.insert(loaded.config.run.name).second);
    EXPECT_FALSE(loaded.config.task == "puzzle" && loaded.config.data.test.empty());
    // A recipe stays what it is when a default changes.
    const std::set<std::string> decisive = {"data", "model",       "lm",   "moe",       "hf",    "lora",
                                            "chat", "polychromic", "grpo", "objective", "optim", "train"};
    for (const Field& field : fields()) {
      if (!decisive.count(field.section) || belongs_to_another_task(field.key, loaded.config.task)) continue;
      EXPECT_EQ(loaded.origin(field.key).text().find(file.string()), 0u) << field.key << " is not in the file";
    }
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    EXPECT_TRUE(text.str().starts_with("//")) << "a recipe begins with a comment on what it trains and how to start it";
    EXPECT_NE(text.str().find("hrm_train train --config configs/" + file.parent_path().filename().string() + "/" +
                              file.filename().string()),
              std::string::npos);
    const LoadedConfig again = config_from_json_text(loaded.to_json(), "dump");
    EXPECT_TRUE(differing_keys(loaded.config, again.config).empty());
  }
}

TEST(Recipes, ShippedDataIsThere) {
  for (const fs::path& file : recipes()) {
    const LoadedConfig loaded = load_config({file.string()}, {});
    for (const std::string& data : {loaded.config.data.train, loaded.config.data.test}) {
      if (!data.starts_with("data/sudoku/")) continue;
      EXPECT_TRUE(fs::exists(fs::path(test::source_dir()) / data)) << data;
    }
  }
}

}  // namespace
}  // namespace hrm::config
