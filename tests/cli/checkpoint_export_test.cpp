// A trained model is handed on: export --to checkpoint, and what reads it.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/finished_run.h"

namespace hrm::test {
namespace {

// A finished run with averages, and two exports of it.
class HandedOn : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    original_ = std::make_unique<TempDir>();
    run_well(train_in(original_->path(), {"optim.ema=0.9", "optim.lr=1e-2", "model.pos_encodings=learned"}));
    for (const char* dtype : {"float32", "bfloat16"}) {
      const std::string out = exported(dtype).string();
      const Result result = run_well(export_to(out, {"--dtype", dtype}));
      EXPECT_EQ(result.out, out + "\n");
      EXPECT_NE(result.err.find("the averaged weights of step 4"), std::string::npos) << result.err;
    }
  }
  static void TearDownTestSuite() { original_.reset(); }

  static Result run_well(const std::vector<std::string>& arguments, const Surroundings& around = {}) {
    const Result result = run(arguments, around);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  static fs::path run_dir() { return original_->path() / "run"; }
  static fs::path exported(const std::string& name) { return original_->path() / name; }
  static std::vector<std::string> export_to(const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"export",           "--to",  "checkpoint", "--checkpoint",
                                          run_dir().string(), "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::string solved(const fs::path& checkpoint) {
    return run_well({"solve", "--checkpoint", checkpoint.string()}, {"", "", std::string(kPuzzle) + "\n"}).out;
  }
  static nlohmann::json evaluated(const fs::path& checkpoint, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"eval",
                                          "--checkpoint",
                                          checkpoint.string(),
                                          "--data",
                                          first_rows("test_17clue_2k.csv", 100),
                                          "eval.batch_size=4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return nlohmann::json::parse(run_well(arguments).out);
  }
  // The run's training with another name, from a checkpoint that was handed on.
  static std::vector<std::string> tune(const fs::path& dir, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = train_in(dir, {"optim.ema=0.9", "model.pos_encodings=learned"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TempDir dir_;
  static inline std::unique_ptr<TempDir> original_;
};

TEST_F(HandedOn, ItHoldsOneSetOfWeightsAndNoOptimizer) {
  const std::set<std::string> expected = {"config.json", "manifest.json", "model.pt"};
  for (const char* dtype : {"float32", "bfloat16"}) {
    std::set<std::string> files;
    for (const auto& entry : fs::directory_iterator(exported(dtype))) files.insert(entry.path().filename().string());
    EXPECT_EQ(files, expected);
  }
  const auto size = [](const fs::path& folder) { return static_cast<double>(fs::file_size(folder / "model.pt")); };
  const double both = size(step_dir(original_->path(), 4));
  EXPECT_LT(size(exported("float32")), 0.6 * both) << "the run keeps raw weights and averages";
  EXPECT_LT(size(exported("bfloat16")), 0.4 * both);
}

TEST_F(HandedOn, ItAnswersAsTheRunDoes) {
  EXPECT_EQ(solved(exported("float32")), solved(run_dir()));
  const nlohmann::json of_run = evaluated(run_dir()), exact = evaluated(exported("float32"));
  EXPECT_EQ(of_run.at("weights"), "ema");
  EXPECT_EQ(exact.at("weights"), "ema");
  EXPECT_EQ(exact.at("lm_loss"), of_run.at("lm_loss"));
  EXPECT_NE(evaluated(run_dir(), {"eval.weights=raw"}).at("lm_loss"), of_run.at("lm_loss")) << "else EMA or raw is one";
  const nlohmann::json rounded = evaluated(exported("bfloat16"));
  EXPECT_NE(rounded.at("lm_loss"), of_run.at("lm_loss")) << "rounding must be seen here";
  EXPECT_NEAR(rounded.at("lm_loss").get<double>(), of_run.at("lm_loss").get<double>(), 0.01);
}

TEST_F(HandedOn, ItAnswersInAnyPlaceUnderAnyName) {
  const fs::path place = dir_ / "models" / "sudoku";
  fs::create_directories(place.parent_path());
  fs::copy(exported("float32"), place);
  write_bytes(place / "README.md", "A card that the manifest does not list.\n");
  const std::string before = solved(exported("float32"));
  const Result there = run_well({"solve", "--checkpoint", "models/sudoku/"},
                                {"cd " + quoted(dir_.path().string()) + ";", "", std::string(kPuzzle) + "\n"});
  EXPECT_EQ(there.out, before);
  flip_byte(place / "model.pt");
  expect_refusal(ExitCode::checkpoint, {"solve", "--checkpoint", place.string()},
                 {"models/sudoku", "model.pt is damaged"}, {"", "", kPuzzle}, /*alone=*/false);
}

// The run's test data were at an absolute path, which is nowhere else. No other data take their place.
TEST_F(HandedOn, AnEvaluationAsksForData) {
  expect_refusal(ExitCode::usage, {"eval", "--checkpoint", exported("float32").string()},
                 {"data.test is empty", "give --data"}, {}, /*alone=*/false);
}

TEST_F(HandedOn, TrainingBeginsWithIt) {
  for (const char* how : {"--init", "--resume"}) {
    const TempDir dir;
    const Result result = run_well(tune(dir.path(), {how, exported("bfloat16").string()}));
    EXPECT_NE(result.err.find("optimizer and data start afresh"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("step 1/4"), std::string::npos) << result.err;
  }
  // It is no state to resume: its own configuration may start a run, and another architecture may not.
  expect_refusal(ExitCode::checkpoint,
                 tune(dir_.path(), {"--init", exported("bfloat16").string(), "model.num_heads=4"}),
                 {"model.num_heads = 4", "another architecture"}, {}, /*alone=*/false);
}

TEST_F(HandedOn, ItIsExportedAgain) {
  for (const char* to : {"pt", "safetensors", "torchscript", "checkpoint"}) {
    const std::string out = (dir_ / to).string();
    run_well({"export", "--to", to, "--checkpoint", exported("bfloat16").string(), "--out", out});
    EXPECT_TRUE(fs::exists(out)) << to;
  }
  EXPECT_EQ(solved(dir_ / "checkpoint"), solved(exported("bfloat16")));
}

TEST_F(HandedOn, AFailureLeavesNoFolder) {
  const std::string out = (dir_ / "out").string();
  const auto refuse = [&](ExitCode code, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& parts, const Surroundings& around = {}) {
    expect_refusal(code, arguments, parts, around);
    EXPECT_TRUE(fs::is_empty(dir_.path())) << "also nothing unfinished";
  };
  refuse(ExitCode::environment, export_to(out), {"model.pt", "too large"}, {"ulimit -f 40;", "", ""});
  refuse(ExitCode::usage, export_to(out, {"--dtype", "half"}), {"--dtype", "half"});
  refuse(ExitCode::environment, export_to(run_dir().string()), {"exists already"});
}

}  // namespace
}  // namespace hrm::test
