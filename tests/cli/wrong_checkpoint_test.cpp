// Wrong checkpoints, resumes, puzzles and files of other programs, as users meet them: each ends in the right exit code
// and one sentence that says what is wrong, and where; what was saved before stays as it was.

#include <gtest/gtest.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/finished_run.h"
#include "hrm/formats/zip.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::FinishedRun;
using test::flip_byte;
using test::kPuzzle;
using test::read;
using test::replaced;
using test::Result;
using test::run;
using test::TempDir;
using test::write_bytes;

TEST_F(FinishedRun, AnotherArchitecture) {
  const std::string name = step(4).filename().string();
  expect_refusal(ExitCode::checkpoint, train({"model.hidden_size=64"}),
                 {name, "another architecture", "model.hidden_size = 64 (command line)", "with 32"}, {},
                 /*alone=*/false);
  expect_refusal(ExitCode::checkpoint,
                 train({"model.arch=trm", "model.H_layers=0", "run.name=other", "--resume", step(4).string()}),
                 {name, "another architecture", "model.arch = \"trm\"", "with \"hrm\""}, {}, /*alone=*/false);
  std::vector<std::string> arguments = evaluate(run_dir());
  arguments.push_back("model.L_layers=2");
  expect_refusal(ExitCode::checkpoint, arguments, {name, "model.L_layers is 1 there and 2"});
  expect_as_undisturbed(4);
}

TEST_F(FinishedRun, TheNewestCheckpointIsCorrupt) {
  flip_byte(step(4) / "state.safetensors");
  const std::string name = step(4).filename().string();
  expect_refusal(ExitCode::checkpoint, evaluate(step(4)), {name, "state.safetensors is damaged"});

  const Result evaluated = run(evaluate(run_dir()));
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find("warning: the checkpoint"), std::string::npos) << evaluated.err;
  const auto json = nlohmann::json::parse(evaluated.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << "stdout holds the result alone: " << evaluated.out;
  EXPECT_EQ(json["step"].get<int64_t>(), 2);

  const Result resumed = run(train());
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  for (const char* part : {"warning: the checkpoint", "step-000000004", "is damaged", "trying the one before it",
                           "at step 2 of 4", "finished 4 steps"}) {
    EXPECT_NE(resumed.err.find(part), std::string::npos) << part << "\n" << resumed.err;
  }
  EXPECT_EQ(resumed.err.find("error: "), std::string::npos) << resumed.err;
  expect_as_undisturbed(2);
  expect_as_undisturbed(4);
}

TEST_F(FinishedRun, AllCheckpointsAreCorrupt) {
  flip_byte(step(2) / "model.pt");
  fs::resize_file(step(4) / "model.pt", 100);
  const std::vector<std::string> parts = {"none of the 2 checkpoints", run_dir().string(), "model.pt has 100 bytes"};
  const std::vector<std::string> solve = {"solve", "--checkpoint", run_dir().string()};
  expect_refusal(ExitCode::checkpoint, solve, parts, {"", "", kPuzzle}, /*alone=*/false);
  expect_refusal(ExitCode::checkpoint, train(), parts, {}, /*alone=*/false);
  // The training has renamed them. It never begins anew in silence.
  const std::vector<std::string> now = {"no checkpoint but bad ones", "bad-step-000000004", "run.name"};
  expect_refusal(ExitCode::checkpoint, train(), now, {}, /*alone=*/false);
  expect_refusal(ExitCode::checkpoint, solve, now, {"", "", kPuzzle}, /*alone=*/false);
}

TEST_F(FinishedRun, ResumeNever) {
  expect_refusal(ExitCode::usage, train({"--resume", "never"}), {run_dir().string(), "--resume never", "run.name"}, {},
                 /*alone=*/false);
  expect_as_undisturbed(4);
}

// The samples and draws of the steps to come would be other ones.
TEST_F(FinishedRun, ResumeWithOtherSamples) {
  for (const char* change : {"run.seed=7", "data.augmentation=sudoku", "data.subsample=100"}) {
    const std::string key = std::string(change).substr(0, std::string(change).find('='));
    expect_refusal(ExitCode::usage, train({change, "train.steps=6"}), {key, "step-000000004", "run.name"}, {},
                   /*alone=*/false);
  }
  // What does not touch them may change, and is named.
  const Result longer = run(train({"train.steps=5", "optim.lr=1e-4"}));
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(longer.err.find("changed since the checkpoint: optim.lr, train.steps"), std::string::npos) << longer.err;
}

// Two futures in one folder: the next --resume auto would take the abandoned one.
TEST_F(FinishedRun, ResumeFromAnOlderStepNeedsItsOwnFolder) {
  expect_refusal(ExitCode::usage, train({"--resume", step(2).string(), "train.steps=6"}),
                 {"step-000000004", "run.name"}, {}, /*alone=*/false);
  const Result branch = run(train({"--resume", step(2).string(), "run.name=branch"}));
  EXPECT_EQ(branch.code, 0) << branch.err;
  EXPECT_NE(branch.err.find("at step 2 of 4"), std::string::npos) << branch.err;
  EXPECT_TRUE(read(dir_ / "branch" / "checkpoints" / "step-000000004" / "model.pt") == read(step(4) / "model.pt"));
}

TEST_F(FinishedRun, PuzzlesThatCannotBeSolved) {
  const std::vector<std::string> solve = {"solve", "--checkpoint", run_dir().string(), "--device", "cpu"};
  const std::string puzzle = kPuzzle;
  expect_refusal(ExitCode::data, solve, {"standard input:2", "80 characters", "81"},
                 {"", "", puzzle + "\n" + puzzle.substr(1) + "\n"});
  const fs::path file = dir_ / "puzzles.txt";
  write_bytes(file, replaced(puzzle, 9, '2'));
  std::vector<std::string> solve_file = solve;
  solve_file.push_back(file.string());
  expect_refusal(ExitCode::data, solve_file, {file.string() + ":1", "contradicts itself", "2"});
  expect_refusal(ExitCode::data, solve, {"standard input", "no puzzle"});
  const Result good = run(solve, {"", "", puzzle + "\n"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 1) << good.out;
  write_bytes(file, "\xEF\xBB\xBF" + puzzle + "\n");
  EXPECT_EQ(run(solve_file).out, good.out) << "a byte-order mark is no cell";
  write_bytes(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n");
  expect_refusal(ExitCode::data, solve_file, {file.string() + ": this is a Git LFS pointer"});
}

// Starts a shell when Python's pickle loads it: posix.system("...").
std::string archive_with_foreign_class() {
  using namespace std::string_view_literals;
  ZipWriter zip;
  zip.add("archive/data.pkl",
          "\x80\x02"
          "cposix\nsystem\nX\x05\x00\x00\x00shell\x85R."sv);
  zip.add("archive/version", "3\n");
  const std::vector<std::byte> bytes = zip.finish();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(WrongCheckpoint, Import) {
  const TempDir dir;
  const fs::path file = dir / "model.pt", out = dir / "imported";
  const std::vector<std::string> import = {"import", "--from", "hrm", file.string(), "--out", out.string()};
  write_bytes(file, "these are no weights\n");
  expect_refusal(ExitCode::checkpoint, import, {file.string(), "not a"});
  write_bytes(file, archive_with_foreign_class());
  expect_refusal(ExitCode::checkpoint, import, {file.string(), "refuses 'posix.system'"});
  EXPECT_FALSE(fs::exists(out)) << "a refused file makes no run folder";
}

}  // namespace
}  // namespace hrm
