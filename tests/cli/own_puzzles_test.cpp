// Puzzles of a kind that the program does not know: build, inspect, train, evaluate, solve.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/finished_run.h"

namespace hrm::test {
namespace {

Result run_well(const std::vector<std::string>& arguments, const std::string& input = "") {
  const Result result = run(arguments, {"", "", input});
  EXPECT_EQ(result.code, 0) << result.err;
  return result;
}

// Trains the smallest model on the folder dir/data.
void train_on_data(const TempDir& dir, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments =
      train_in(dir.path(), {"data.train=" + (dir / "data").string(), "data.test=" + (dir / "data").string(),
                            "train.steps=60", "train.checkpoint_every=0", "optim.lr=1e-2",
                            "data.reference_semantics=false", "model.no_ACT_continue=true"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  run_well(arguments);
}

TEST(OwnPuzzlesCli, GridsOfAnySizeGoFromDataToAnswers) {
  const TempDir dir;
  // The answer to "[" is "\", to "a" it is "€": symbols that a manifest and a JSON text must quote.
  std::string lines;
  for (const char* pair : {R"("[a","\\€")", R"("aa","€€")", R"("[[","\\\\")", R"("a[","€\\")", R"("a","€")"}) {
    const auto both = nlohmann::json::parse(std::string("[") + pair + "]");
    const nlohmann::json question = nlohmann::json::array({both[0]}), answer = nlohmann::json::array({both[1]});
    lines += nlohmann::json{{"question", question}, {"answer", answer}}.dump() + "\n";
  }
  write_bytes(dir / "puzzles.jsonl", lines);
  const std::string data = (dir / "data").string();
  run_well({"data", "grid", "--train", (dir / "puzzles.jsonl").string(), "--test-share", "0.2", "--out", data});
  EXPECT_NE(run_well({"data", "inspect", data}).out.find("grids of 1x2, 4 symbols"), std::string::npos);
  train_on_data(dir);
  const std::string checkpoint = (dir / "run").string();
  EXPECT_NE(run_well({"eval", "--checkpoint", checkpoint}).out.find("exact_accuracy"), std::string::npos);
  const Result solved = run_well({"solve", "--checkpoint", checkpoint}, "a[\n[a\na\n");
  EXPECT_TRUE(solved.out.starts_with("€\\\t")) << solved.out;
  EXPECT_NE(solved.out.find("\n\\€\t"), std::string::npos) << solved.out;
  EXPECT_NE(solved.out.find("\n€\t"), std::string::npos) << "as small as its question: " << solved.out;
  EXPECT_EQ(solved.out.find("valid"), std::string::npos) << "no rules are known: " << solved.out;

  const std::vector<std::string> solve = {"solve", "--checkpoint", checkpoint};
  const auto refuse = [&](ExitCode code, std::vector<std::string> parts, const std::string& input,
                          std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), solve.begin(), solve.end());
    expect_refusal(code, arguments, parts, {"", "", input}, /*alone=*/false);
  };
  refuse(ExitCode::data, {"standard input:2", "the symbol \"z\"", "vocabulary"}, "a[\naz\n", {});
  refuse(ExitCode::data, {"standard input:1", "has 3 cells", "no square"}, "aaa\n", {});
  refuse(ExitCode::data, {"standard input:1", "2x2 cells", "at most 1x2"}, "aaaa\n", {});
  refuse(ExitCode::data, {"standard input holds no puzzle"}, "", {});
  refuse(ExitCode::usage, {"--watch draws Sudoku and mazes only"}, "a[\n", {"--watch"});
  refuse(ExitCode::usage, {"--selector valid", "rules"}, "a[\n", {"--rollouts", "2", "--selector", "valid"});

  // The same sizes with other symbols are other puzzles.
  write_bytes(dir / "others.jsonl",
              "{\"question\":[\"bc\"],\"answer\":[\"de\"]}\n{\"question\":[\"cc\"],\"answer\":[\"ee\"]}");
  const std::string others = (dir / "others").string();
  run_well({"data", "grid", "--train", (dir / "others.jsonl").string(), "--test-share", "0.5", "--out", others});
  expect_refusal(ExitCode::data, {"eval", "--checkpoint", checkpoint, "--data", others}, {"other symbols"}, {},
                 /*alone=*/false);
}

TEST(OwnPuzzlesCli, PairsAreAnsweredAsArraysAndText) {
  const TempDir dir;
  write_bytes(dir / "pairs.jsonl",
              "{\"question\":[1,2],\"answer\":[10]}\n{\"question\":[2],\"answer\":[1,1,1]}\n"
              "{\"question\":[1],\"answer\":[2]}\n");
  run_well({"data", "pairs", "--train", (dir / "pairs.jsonl").string(), "--test-share", "0.1", "--out",
            (dir / "data").string()});
  run_well({"data", "pairs", "--train", (dir / "pairs.jsonl").string(), "--out", (dir / "all").string()});
  // Enough for the three answers whatever the rounding, with two seeds.
  train_on_data(
      dir, {"data.train=" + (dir / "all").string(), "train.steps=300", "optim.lr=3e-3", "model.pos_encodings=learned"});
  const Result solved =
      run_well({"solve", "--checkpoint", (dir / "run").string(), "--format", "jsonl"}, "[1,2]\n[2]\n2\n");
  std::istringstream text(solved.out);
  std::vector<nlohmann::json> answers;
  for (std::string line; std::getline(text, line);) answers.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]["question"], nlohmann::json::parse("[1,2]"));
  EXPECT_EQ(answers[0]["answer"], nlohmann::json::parse("[10]"));
  EXPECT_EQ(answers[1]["answer"], nlohmann::json::parse("[1,1,1]"));
  EXPECT_EQ(answers[2]["answer"], "111");
  EXPECT_FALSE(answers[0].contains("valid"));
}

}  // namespace
}  // namespace hrm::test
