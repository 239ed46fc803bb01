// Wrong data and configurations, as users meet them: each ends in the right exit code and one sentence that says what
// is wrong, and where.

#include <gtest/gtest.h>

#include "cli/finished_run.h"
#include "hrm/base/file.h"
#include "hrm/formats/npy.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::kPuzzle;
using test::kSolution;
using test::read;
using test::replaced;
using test::Result;
using test::run;
using test::TempDir;
using test::train_in;
using test::write_bytes;

// A data set of two 2x2 grids in the official layout; the pieces can be written anew.
struct SmallDataset {
  explicit SmallDataset(const fs::path& root, int identifiers = 1) : root_(root) {
    fs::create_directories(root / "train");
    write_text_atomic(root / "train" / "dataset.json",
                      R"({"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "vocab_size": 11, "seq_len": 4,
                      "total_groups": 2, "mean_puzzle_examples": 1, "sets": ["all"], "num_puzzle_identifiers": )" +
                          std::to_string(identifiers) + "}");
    tokens<uint8_t>("inputs", DType::u8, {1, 2, 3, 4, 5, 6, 7, 8});
    tokens<uint8_t>("labels", DType::u8, {1, 2, 3, 4, 5, 6, 7, 8});
    index("puzzle_identifiers", {0, 0});
    index("puzzle_indices", {0, 1, 2});
    index("group_indices", {0, 1, 2});
  }
  fs::path file(const std::string& what) const { return root_ / "train" / ("all__" + what + ".npy"); }
  template <class T>
  void tokens(const std::string& what, DType dtype, const std::vector<T>& values) const {
    write_npy(file(what), dtype, {2, 4}, std::as_bytes(std::span(values)));
  }
  void index(const std::string& what, const std::vector<int32_t>& values) const {
    write_npy(file(what), DType::i32, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values)));
  }
  fs::path root_;
};

void expect_data_refused(const SmallDataset& data, const fs::path& run_dir, const std::vector<std::string>& parts) {
  expect_refusal(ExitCode::data, train_in(run_dir, {"data.train=" + data.root_.string(), "data.test="}), parts);
}

TEST(WrongData, OfficialLayout) {
  const TempDir dir;
  const fs::path root = dir / "data", runs = dir / "runs";
  const SmallDataset data(root);
  const Result good = run({"data", "inspect", root.string()});
  ASSERT_EQ(good.code, 0) << good.err;

  fs::remove(data.file("labels"));
  expect_data_refused(data, runs, {data.file("labels").string(), "does not exist"});
  data.tokens<int32_t>("labels", DType::i32, {1, 2, 3, 4, 5, 6, 7, 11});
  expect_data_refused(data, runs, {data.file("labels").string(), "token 11 in row 1, column 3", "0..10"});
  data.tokens<int64_t>("labels", DType::i64, {-5, 2, 3, 4, 5, 6, 7, 8});
  expect_data_refused(data, runs, {data.file("labels").string(), "token -5 in row 0, column 0", "0..10"});
  data.tokens<uint8_t>("labels", DType::u8, {1, 2, 3, 4, 5, 6, 7, 8});

  data.tokens<float>("inputs", DType::f32, {1, 2, 3, 4, 5, 6, 7, 8});
  expect_data_refused(data, runs, {data.file("inputs").string(), "F32", "must be U8, I32 or I64"});
  data.tokens<uint8_t>("inputs", DType::u8, {1, 2, 3, 4, 5, 6, 7, 8});
  const std::string whole = read(data.file("inputs"));
  write_bytes(data.file("inputs"), whole.substr(0, whole.size() - 3));
  expect_data_refused(data, runs, {data.file("inputs").string(), "5 follow the header", "truncated"});
  write_bytes(data.file("inputs"), whole.substr(0, 20));
  expect_refusal(ExitCode::data, {"data", "inspect", root.string()},
                 {data.file("inputs").string(), "ends inside its header"});
  write_bytes(data.file("inputs"), whole);
  EXPECT_EQ(run({"data", "inspect", root.string()}).code, 0) << "as it was, it is good again";
}

TEST(WrongData, Csv) {
  const TempDir dir;
  const fs::path file = dir / "puzzles.csv";
  const auto write = [&](const std::string& question, const std::string& answer) {
    write_bytes(file, "source,question,answer,rating\nx," + std::string(kPuzzle) + "," + kSolution + ",1\nx," +
                          question + "," + answer + ",2\n");
  };
  const std::vector<std::string> train = train_in(dir.path(), {"data.train=" + file.string(), "data.test="});
  const std::string where = file.string() + ":3";
  const std::string puzzle = kPuzzle;

  write(puzzle.substr(1), kSolution);
  expect_refusal(ExitCode::data, train, {where, "question has 80 characters", "81"});
  // Without its first 1 the puzzle has several solutions.
  write(replaced(puzzle, puzzle.find('1'), '.'), kSolution);
  expect_refusal(ExitCode::data, train, {where, "more than one solution"});
  // The row holds a 1 and a 2; a second 2 is placed.
  write(replaced(puzzle, 9, '2'), kSolution);
  expect_refusal(ExitCode::data, train, {where, "givens contradict each other", "2"});
  write(puzzle, replaced(kSolution, 0, '2'));
  expect_refusal(ExitCode::data, {"data", "sudoku", "--train-csv", file.string(), "--out", (dir / "out").string()},
                 {where, "answer is not a solution"});
  EXPECT_FALSE(fs::exists(dir / "out")) << "a refused file leaves no data set";
  expect_refusal(ExitCode::data, train_in(dir.path(), {"data.train=" + (dir / "none.csv").string()}),
                 {"none.csv", "no such file"});
}

TEST(WrongConfiguration, UnknownKey) {
  const TempDir dir;
  const fs::path file = dir / "a.json";
  write_bytes(file, "{\n  \"train\": {\n    \"stepz\": 5\n  }\n}\n");
  std::vector<std::string> train = train_in(dir.path());
  expect_refusal(ExitCode::usage, {"train", "--config", file.string()},
                 {file.string() + ":3", "train.stepz", "'train.steps'"});
  train.push_back("optim.lrr=1");
  expect_refusal(ExitCode::usage, train, {"optim.lrr", "'optim.lr'"});
  EXPECT_FALSE(fs::exists(dir / "run")) << "a refused configuration makes no run folder";
}

// A model of some puzzles is trained on others, whose data have no test set: the one that ships is not theirs.
TEST(OtherPuzzles, BeginWithTheWeightsOfACheckpoint) {
  const TempDir dir;
  const SmallDataset few(dir / "few", 2), many(dir / "many", 5);
  const auto train_on = [&](const SmallDataset& data, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = train_in(dir.path(), more);
    std::erase_if(arguments, [](const std::string& one) { return one.starts_with("data.t"); });
    arguments.push_back("data.train=" + data.root_.string());
    return arguments;
  };
  const std::string old = (dir / "run").string();
  const Result first = run(train_on(few, {}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find("no evaluation, for data.test is empty"), std::string::npos) << first.err;
  expect_refusal(ExitCode::usage, {"eval", "--checkpoint", old}, {"no test data (data.test is empty)", "--data"});
  expect_refusal(ExitCode::data, train_on(many, {"run.name=new", "--resume", old}),
                 {"2 puzzle identifiers", "have 5", "--init"}, {}, /*alone=*/false);

  const std::vector<std::string> begin = train_on(many, {"run.name=new", "--init", old});
  const Result tuned = run(begin);
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  for (const char* part : {"'puzzle_emb.weights' has 5 rows here and 2 in the checkpoint", "weights from ",
                           "optimizer and data start afresh", "finished 4 steps"}) {
    EXPECT_NE(tuned.err.find(part), std::string::npos) << part << " is not in " << tuned.err;
  }
  // Started again, it goes on from its own checkpoint.
  const Result again = run(begin);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("this run is finished"), std::string::npos) << again.err;

  expect_refusal(ExitCode::checkpoint, train_on(many, {"run.name=other", "model.rope_theta=500", "--init", old}),
                 {"model.rope_theta = 500", "another architecture", "with 10000"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::usage, train_on(many, {"run.name=other", "--resume", old, "--init", old}),
                 {"--resume", "--init", "give one of them"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::checkpoint, train_on(many, {"run.name=other", "--init", (dir / "none").string()}),
                 {"there is no checkpoint at"}, {}, /*alone=*/false);
}

}  // namespace
}  // namespace hrm
