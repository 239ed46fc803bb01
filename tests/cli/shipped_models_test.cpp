// The trained models of checkpoints/: each folder that git holds there.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "cli/finished_run.h"

namespace hrm::test {
namespace {

constexpr uint64_t kMostBytes = 12'000'000;

// The folders that .gitignore lets in and that are there.
std::vector<fs::path> shipped_models() {
  const std::string ignored = read(fs::path(source_dir()) / ".gitignore");
  const std::regex line("!/(checkpoints/[^/\n]+)/\n");
  std::vector<fs::path> folders;
  for (std::sregex_iterator match(ignored.begin(), ignored.end(), line), end; match != end; ++match) {
    if (fs::path folder = fs::path(source_dir()) / (*match)[1].str(); fs::exists(folder)) folders.push_back(folder);
  }
  return folders;
}

struct Example {
  std::string puzzle, checkpoint;
};

// The lines "echo PUZZLE | hrm_train solve --checkpoint checkpoints/NAME ..." of a page.
std::vector<Example> examples_of(const fs::path& page) {
  const std::string text = read(page);
  const std::regex line("\necho ([0-9.]+) \\| hrm_train solve --checkpoint (checkpoints/[a-z0-9_]+)");
  std::vector<Example> examples;
  for (std::sregex_iterator match(text.begin(), text.end(), line), end; match != end; ++match) {
    examples.push_back({(*match)[1], (*match)[2]});
  }
  return examples;
}

// The model's answer obeys the rules and keeps the givens.
void expect_solved(const Example& example) {
  SCOPED_TRACE(example.checkpoint + " " + example.puzzle);
  const std::string folder = (fs::path(source_dir()) / example.checkpoint).string();
  const Result result = run({"solve", "--checkpoint", folder}, {"", "", example.puzzle + "\n"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.out.ends_with("\tvalid\n")) << result.out;
  const std::string answer = result.out.substr(0, result.out.find('\t'));
  ASSERT_EQ(answer.size(), example.puzzle.size());
  for (size_t cell = 0; cell < answer.size(); ++cell) {
    if (example.puzzle[cell] != '.') {
      EXPECT_EQ(answer[cell], example.puzzle[cell]) << cell;
    }
  }
}

TEST(ShippedModels, EachIsSmallWholeAndDescribed) {
  const std::vector<fs::path> folders = shipped_models();
  ASSERT_FALSE(folders.empty());
  for (const fs::path& folder : folders) {
    SCOPED_TRACE(folder);
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
    EXPECT_LE(bytes, kMostBytes);
    ASSERT_TRUE(fs::is_regular_file(folder / "README.md")) << "it has no card";
    const auto manifest = nlohmann::json::parse(read(folder / "manifest.json"));
    EXPECT_EQ(manifest.at("kind"), "weights");
    // The commit that a card names can be looked up, so it must not have had changes beside it.
    EXPECT_EQ(manifest.at("info").at("program").get<std::string>().find("dirty"), std::string::npos);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name == "README.md" || name == "manifest.json" || manifest.at("files").contains(name)) << name;
    }
    const std::string config = read(folder / "config.json");
    EXPECT_EQ(config.find("\"/"), std::string::npos) << "a path of the machine that made it";
    // Opens it, with the digests of all files.
    const std::vector<Example> examples = examples_of(folder / "README.md");
    ASSERT_FALSE(examples.empty()) << "its card shows no puzzle";
    for (const Example& example : examples) {
      EXPECT_EQ(fs::path(source_dir()) / example.checkpoint, folder);
      expect_solved(example);
    }
  }
}

TEST(ShippedModels, TheReadmesExampleHolds) {
  const std::vector<Example> examples = examples_of(fs::path(source_dir()) / "README.md");
  ASSERT_FALSE(examples.empty());
  for (const Example& example : examples) expect_solved(example);
}

TEST(ShippedModels, SixBySixHasItsOnlySolution) {
  const std::string folder = (fs::path(source_dir()) / "checkpoints/sudoku6").string();
  const Result result = run({"solve", "--checkpoint", folder}, {"", "", "2..13...14.55.3214...6.....5..1.43..\n"});
  EXPECT_TRUE(result.out.starts_with("245136631425563214412653326541154362\t")) << result.out << result.err;
}

}  // namespace
}  // namespace hrm::test
