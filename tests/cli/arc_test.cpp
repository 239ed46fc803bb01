// ARC tasks from pictures to an evaluation with pictures, as users run it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/finished_run.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

fs::path frames() {
  return fs::path(test::source_dir()) / "tests/fixtures/arc_pictures";
}

size_t count_files(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ArcCli, TasksAreDrawn) {
  const TempDir dir;
  const std::string out = (dir / "out").string();
  const Result drawn = run({"data", "pictures", frames().string(), "--out", out});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(drawn.out, out + ": 1 pictures\n");
  EXPECT_EQ(read(dir / "out/frames.svg"), read(fs::path(test::source_dir()) / "docs/images/arc_task.svg"));
  // Never over a file that is there.
  test::write_bytes(dir / "out/frames.svg", "mine");
  expect_refusal(ExitCode::usage, {"data", "pictures", frames().string(), "--out", out}, {"out", "frames.svg already"});
  EXPECT_EQ(read(dir / "out/frames.svg"), "mine");
  // Subsets without answers beside those with answers.
  test::write_bytes(dir / "x_evaluation_challenges.json",
                    R"({"a": {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]},)"
                    R"( "b": {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}})");
  const std::string challenges = (dir / "x_evaluation_challenges.json").string();
  const Result both =
      run({"data", "pictures", frames().string(), challenges, "--out", (dir / "both").string(), "--task", "b"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(count_files(dir / "both"), 1U);
  EXPECT_NE(read(dir / "both/b.svg").find(">?</text>"), std::string::npos);
  expect_refusal(ExitCode::usage, {"data", "pictures", frames().string(), "--task", "frame", "--out", out},
                 {"--task 'frame'", "1 tasks", "did you mean 'frames'?"});
  expect_refusal(ExitCode::data, {"data", "pictures", challenges, challenges, "--out", (dir / "twice").string()},
                 {"task a", "named twice"});
  expect_refusal(ExitCode::data, {"data", "pictures", (dir / "none").string(), "--out", out}, {"neither a folder"});
  expect_refusal(ExitCode::environment, {"data", "pictures", frames().string(), "--out", challenges}, {"challenges"});
  expect_refusal(ExitCode::usage, {"data", "pictures", frames().string()}, {"--out"});
}

TEST(ArcCli, AnswersAreDrawnBesideTheTruth) {
  const TempDir dir;
  const std::string data = (dir / "arc").string();
  const Result built =
      run({"data", "arc", frames().string(), "--test", "arc_pictures", "--augment", "2", "--out", data});
  ASSERT_EQ(built.code, 0) << built.err;
  const Result trained = run(test::train_in(
      dir.path(), {"data.train=" + data, "data.test=" + data, "train.global_batch_size=4", "train.steps=1",
                   "train.checkpoint_every=1", "model.puzzle_emb_ndim=-1", "eval.max_samples=0"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string pictures = (dir / "pictures").string(), submission = (dir / "submission.json").string();
  const std::vector<std::string> evaluate = {"eval", "--checkpoint", (dir / "run").string(), "--pictures", pictures};
  std::vector<std::string> first = evaluate;
  first.insert(first.end(), {"--submission", submission});
  const Result evaluated = run(first);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(nlohmann::json::parse(evaluated.out).at("tasks"), 1);
  const std::string svg = read(dir / "pictures/frames.svg");
  EXPECT_EQ(count_files(pictures), 1U);
  EXPECT_NE(svg.find(">truth</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("attempt 1: "), std::string::npos) << svg;
  EXPECT_NE(svg.find(" of 3 votes"), std::string::npos) << "the task and its two copies";
  // Refused before the evaluation.
  expect_refusal(ExitCode::usage, evaluate, {"frames.svg already"}, {}, /*alone=*/false);
  std::vector<std::string> some = evaluate;
  some.back() = (dir / "some").string();
  some.emplace_back("eval.max_samples=1");
  expect_refusal(ExitCode::usage, some, {"--pictures", "all samples", "eval.max_samples is 1"}, {}, /*alone=*/false);
  EXPECT_FALSE(fs::exists(dir / "some"));
}

// The same tasks, full and compact, with rows made by the host and by the table of the device, give the same model, the
// same answers and the same submission.
TEST(ArcCli, CompactFoldersTrainAndAnswerAlike) {
  const TempDir dir;
  const auto build = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"data", "arc",   frames().string(),    "--test", "arc_pictures", "--augment",
                                          "5",    "--out", (dir / name).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result built = run(arguments);
    ASSERT_EQ(built.code, 0) << built.err;
    EXPECT_NE(built.out.find("18 training examples, 6 test examples"), std::string::npos) << built.out;
  };
  build("full", {});
  build("compact", {"--compact"});
  const Result shown = run({"data", "inspect", (dir / "compact").string(), "--example", "2"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  std::vector<std::string> models, answers;
  for (const auto& [name, device] : {std::pair{"full", "host"}, {"compact", "host"}, {"compact", "device"}}) {
    const fs::path at = dir / (std::string(name) + device);
    const std::string data = (dir / name).string(), submission = (at / "submission.json").string();
    const Result trained =
        run(test::train_in(at, {"data.train=" + data, "data.test=" + data, "train.global_batch_size=4", "train.steps=3",
                                "train.checkpoint_every=3", "model.puzzle_emb_ndim=-1", "eval.max_samples=0",
                                "data.augmentation=none", std::string("data.augmentation_device=") + device}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    models.push_back(read(at / "run/checkpoints/step-000000003/model.pt"));
    const Result evaluated = run({"eval", "--checkpoint", (at / "run").string(), "--submission", submission});
    ASSERT_EQ(evaluated.code, 0) << evaluated.err;
    auto values = nlohmann::json::parse(evaluated.out);
    for (const char* differs : {"checkpoint", "data", "seconds"}) values.erase(differs);
    answers.push_back(values.dump() + read(submission));
  }
  ASSERT_FALSE(models[0].empty());
  for (size_t i = 1; i < models.size(); ++i) {
    EXPECT_TRUE(models[i] == models[0]) << i;
    EXPECT_EQ(answers[i], answers[0]) << i;
  }
  expect_refusal(ExitCode::usage,
                 test::train_in(dir / "other", {"data.train=" + (dir / "compact").string(),
                                                "data.test=", "data.augmentation=dihedral"}),
                 {"data.augmentation is dihedral", "drawn already"}, {}, /*alone=*/false);
}

class ArcOfAnotherRun : public test::FinishedRun {};

TEST_F(ArcOfAnotherRun, PicturesAreOfArcTasks) {
  std::vector<std::string> arguments = evaluate(run_dir());
  arguments.insert(arguments.end(), {"--pictures", (dir_ / "pictures").string()});
  expect_refusal(ExitCode::usage, arguments, {"--pictures", "no folder of ARC tasks"}, {}, /*alone=*/false);
}

}  // namespace
}  // namespace hrm
