// Wrong inputs and surroundings, as users meet them: each ends in the right exit code and one sentence that says what
// is wrong, and where; what was saved before stays as it was.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/program.h"
#include "hrm/base/file.h"
#include "hrm/formats/npy.h"
#include "hrm/formats/zip.h"
#include "support/first_rows.h"
#include "support/paths.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

// A puzzle of the training file, and its only solution.
constexpr const char* kPuzzle = "................12....34.........5....1..6.....7...3...1.7.2.6.34.......5....8...";
constexpr const char* kSolution = "165827934483965712729134658694273581831596247257481396918752463342619875576348129";

std::string replaced(std::string text, size_t at, char by) {
  text[at] = by;
  return text;
}

void write_bytes(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void flip_byte(const fs::path& file) {
  std::string bytes = read(file);
  ASSERT_FALSE(bytes.empty()) << file;
  char& middle = bytes[bytes.size() / 2];
  middle = static_cast<char>(middle ^ 1);
  write_bytes(file, bytes);
}

// `train` with the smallest model, 4 steps of 8 Sudokus, a checkpoint after 2 and one at the end, in dir/run.
std::vector<std::string> train_in(const fs::path& dir, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train",
                                        "run.dir=" + dir.string(),
                                        "data.train=" + test::first_rows("train_17clue_1k.csv", 100),
                                        "data.test=" + test::first_rows("test_17clue_2k.csv", 100),
                                        "model.hidden_size=32",
                                        "model.num_heads=2",
                                        "model.H_layers=1",
                                        "model.L_layers=1",
                                        "model.H_cycles=1",
                                        "model.L_cycles=1",
                                        "model.halt_max_steps=2",
                                        "optim.lr=1e-3",
                                        "optim.warmup_steps=0",
                                        "train.global_batch_size=8",
                                        "train.steps=4",
                                        "train.checkpoint_every=2",
                                        "train.log_every=1",
                                        "eval.max_samples=4",
                                        "runtime.device=cpu",
                                        "runtime.threads=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

fs::path step_dir(const fs::path& dir, int64_t step) {
  return dir / "run" / "checkpoints" / ("step-00000000" + std::to_string(step));
}

// A finished run with the checkpoints of steps 2 and 4, made once for all tests that damage a copy of it.
class FinishedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    original_ = std::make_unique<TempDir>();
    const Result result = run(train_in(original_->path()));
    ASSERT_EQ(result.code, 0) << result.err;
    ASSERT_EQ(result.out, "");
  }
  static void TearDownTestSuite() { original_.reset(); }
  void SetUp() override {
    ASSERT_TRUE(fs::is_directory(step_dir(original_->path(), 4)));
    fs::copy(original_->path(), dir_.path(), fs::copy_options::recursive);
  }

  fs::path run_dir() const { return dir_ / "run"; }
  fs::path step(int64_t number) const { return step_dir(dir_.path(), number); }
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    return train_in(dir_.path(), more);
  }
  std::vector<std::string> evaluate(const fs::path& checkpoint) const {
    return {"eval", "--checkpoint", checkpoint.string(), "eval.batch_size=4"};
  }
  // The checkpoint is, bit for bit, the one of the run that was never disturbed.
  void expect_as_undisturbed(int64_t number) const {
    for (const char* file : {"model.pt", "state.safetensors"}) {
      EXPECT_TRUE(read(step(number) / file) == read(step_dir(original_->path(), number) / file)) << number << file;
    }
  }

  TempDir dir_;
  static std::unique_ptr<TempDir> original_;
};
std::unique_ptr<TempDir> FinishedRun::original_;

// Data.

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
                 {where, "answer is no solution"});
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

// Checkpoints.

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

TEST_F(FinishedRun, ResultsThatCannotBeWritten) {
  const std::string binary = test::quoted(test::train_binary());
  const std::string command = "OMP_NUM_THREADS=1 timeout 60 " + binary + " eval --checkpoint " +
                              test::quoted(run_dir().string()) + " eval.batch_size=4 >/dev/full 2>" +
                              test::quoted((dir_ / "err").string());
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::environment));
  test::expect_one_sentence(read(dir_ / "err"), {"standard output"}, /*alone=*/false);
}

// Puzzles to solve.

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

// Files of other programs.

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

// Places that cannot be written.

TEST_F(FinishedRun, PlacesThatCannotBeWritten) {
  const fs::path file = dir_ / "file";
  write_bytes(file, "a file, no folder");
  // Both hold for root, too: a regular file in the place of a folder, and a file system without new files.
  for (const std::string& place : {file.string(), std::string("/proc")}) {
    expect_refusal(ExitCode::environment, train_in(place), {"cannot create the folder '" + place + "/run'"});
    for (const char* format : {"safetensors", "torchscript"}) {
      expect_refusal(ExitCode::environment,
                     {"export", "--to", format, "--checkpoint", run_dir().string(), "--out", place + "/weights"},
                     {place});
    }
  }
  std::vector<std::string> arguments = evaluate(run_dir());
  arguments.insert(arguments.end(), {"--json", (file / "result.json").string()});
  expect_refusal(ExitCode::environment, arguments, {"--json", "there is no folder '" + file.string() + "'"});
  EXPECT_EQ(read(file), "a file, no folder");
  if (::geteuid() != 0) {
    const fs::path closed = dir_ / "closed";
    fs::create_directory(closed);
    fs::permissions(closed, fs::perms::owner_read | fs::perms::owner_exec);
    expect_refusal(ExitCode::environment, train_in(closed), {"Permission denied"});
    fs::permissions(closed, fs::perms::owner_all);
  }
}

TEST_F(FinishedRun, ALogFileThatFailsIsWarnedOfOnce) {
  const fs::path log = run_dir() / "log" / "rank_0.log";
  ASSERT_TRUE(fs::remove(log));
  fs::create_symlink("/dev/full", log);
  const Result result = run(train());
  EXPECT_EQ(result.code, 0) << result.err;
  const size_t warning = result.err.find("warning: lines of the log file are lost: ");
  EXPECT_NE(warning, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("warning", warning + 1), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("LOG ERROR"), std::string::npos) << result.err;
}

// A file size limit is met where a full disk would be, and needs no rights to set.
TEST_F(FinishedRun, FileSizeLimit) {
  expect_refusal(ExitCode::environment, train({"train.steps=6"}),
                 {"checkpoint of step 6 was not saved", "too large", "earlier checkpoints are untouched"},
                 {"ulimit -f 250;", "", ""}, /*alone=*/false);
  EXPECT_FALSE(fs::exists(step(6)));
  expect_as_undisturbed(2);
  expect_as_undisturbed(4);
  EXPECT_EQ(run(evaluate(run_dir())).code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(run_dir() / "checkpoints"), {}), 2) << "nothing half-written is left";
}

TEST(WrongSurroundings, FullDisk) {
  const TempDir disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=1600k") != 0) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  // One checkpoint of 0.9 MB would fit. (A disk that fills up later: tests/fault/fs_faults.py.)
  expect_refusal(ExitCode::environment, train_in(disk.path()),
                 {disk.path().string(), "free; 3 checkpoints of", "must fit", "train.keep_checkpoints"}, {},
                 /*alone=*/false);
  // Not one byte more: the program cannot even write its log.
  {
    std::ofstream filler(disk / "filler", std::ios::binary);
    while (filler << std::string(4096, 'x') << std::flush) continue;
  }
  const Result full = run(train_in(disk.path()));
  EXPECT_EQ(full.code, static_cast<int>(ExitCode::environment)) << full.err;
  test::expect_one_sentence(full.err, {"cannot write", disk.path().string(), "No space left on device"},
                            /*alone=*/false);
  ::umount(disk.path().c_str());
}

// What the machine lacks.

TEST_F(FinishedRun, NoUsableGpu) {
  // run() hides the GPUs of a machine that has some.
  const std::vector<std::string> parts = {"runtime.device is 'cuda'", "runtime.device=cpu"};
  expect_refusal(ExitCode::environment, train({"runtime.device=cuda", "run.name=gpu"}), parts);
  expect_refusal(ExitCode::environment, {"solve", "--checkpoint", run_dir().string(), "--device", "cuda"}, parts,
                 {"", "", kPuzzle});
}

TEST(WrongSurroundings, NotEnoughMemory) {
  const TempDir dir;
  // The carries of 16 million samples take 176 GB, the limit is 64 GB.
  expect_refusal(ExitCode::environment,
                 train_in(dir.path(), {"train.global_batch_size=16777216", "train.micro_batch_size=8"}),
                 {"not enough free memory", "train.global_batch_size"}, {"ulimit -v 67108864;", "", ""});
}

// A shell leaves the tilde of --out=~/x alone: no folder called "~" must appear.
TEST(WrongSurroundings, TildesInOptions) {
  const TempDir home;
  const auto arithmetic = [](const std::string& out) {
    return std::vector<std::string>{"data", "arithmetic", "--digits", "1", "--samples", "10", out};
  };
  const std::string environment = "HOME=" + home.path().string();
  EXPECT_EQ(run(arithmetic("--out=~/sums"), {"", environment, ""}).code, 0);
  EXPECT_TRUE(fs::exists(home / "sums"));
  expect_refusal(ExitCode::usage, arithmetic("--out=~you/sums"), {"--out", "'~you/sums' begins with a tilde"});
  // Every option that takes a file or folder.
  for (const char* kind : {"sudoku", "maze"}) {
    for (const char* option : {"--train-csv", "--test-csv"}) {
      expect_refusal(ExitCode::usage, {"data", kind, cat(option, "=~you/s.csv"), "--out", "x"},
                     {option, "'~you/s.csv' begins with a tilde"});
    }
  }
}

TEST(WrongSurroundings, SeveralRanks) {
  const TempDir dir;
  // The others never come.
  expect_refusal(ExitCode::rank_failed, train_in(dir.path(), {"parallel.meet_timeout_s=1"}),
                 {"these of 2 ranks have not come to 127.0.0.1:29511", ": 1"},
                 {"", "WORLD_SIZE=2 LOCAL_RANK=0 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511", ""});
  expect_refusal(ExitCode::environment, train_in(dir.path()), {"MASTER_ADDR is not set"},
                 {"", "WORLD_SIZE=2 LOCAL_RANK=0 RANK=0", ""});
  // Rank 0 is not there.
  expect_refusal(ExitCode::rank_failed, train_in(dir.path(), {"parallel.meet_timeout_s=1"}),
                 {"rank 3 found nobody at 127.0.0.1:29512", "MASTER_ADDR"},
                 {"",
                  "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=3 "
                  "OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29512",
                  ""});
  expect_refusal(ExitCode::usage, train_in(dir.path(), {"parallel.heartbeat_s=6", "parallel.timeout_s=10"}),
                 {"parallel.heartbeat_s = 6", "half of parallel.timeout_s = 10"},
                 {"", "WORLD_SIZE=2 LOCAL_RANK=0 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511", ""});
  EXPECT_FALSE(fs::exists(dir / "run"));
}

// A training in the background.
class Training {
 public:
  Training(const std::vector<std::string>& arguments, const fs::path& err) : err_(err) {
    std::string binary = test::train_binary();
    std::vector<char*> words = {binary.data()};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    const int file = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, 0);
    ::dup2(null, 1);
    ::dup2(file, 2);
    ::execv(binary.c_str(), words.data());
    ::_exit(127);
  }
  ~Training() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  // Until its output holds this text; false after a minute, or when it has ended.
  bool wait_for(const std::string& text) {
    for (int i = 0; i < 6000; ++i) {
      if (read(err_).find(text) != std::string::npos) return true;
      siginfo_t ended{};
      if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0)
        break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  void send(int signal) const { ::kill(pid_, signal); }
  // Its exit code; -1 when a signal ended it.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string err() const { return read(err_); }

 private:
  pid_t pid_ = -1;
  fs::path err_;
};

TEST(WrongSurroundings, TwoProcessesInOneFolderAndSigterm) {
  const TempDir dir;
  Training first(train_in(dir.path(), {"train.steps=1000000", "train.checkpoint_every=0", "train.log_every=5"}),
                 dir / "err");
  ASSERT_TRUE(first.wait_for("step 5/")) << first.err();
  expect_refusal(ExitCode::environment, train_in(dir.path()),
                 {"another process trains in '" + (dir / "run").string() + "'", "run.name"});
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), static_cast<int>(ExitCode::stopped)) << first.err();
  EXPECT_NE(first.err().find("(SIGTERM); start it again to go on"), std::string::npos) << first.err();
  EXPECT_EQ(first.err().find("error: "), std::string::npos) << first.err();

  std::vector<fs::path> saved;
  for (const auto& entry : fs::directory_iterator(dir / "run" / "checkpoints")) saved.push_back(entry.path());
  ASSERT_EQ(saved.size(), 1u);
  const int64_t stopped = std::stoll(saved[0].filename().string().substr(5));
  EXPECT_GE(stopped, 5);

  // The run is shortened, so that it ends at once on every machine.
  const std::string steps = std::to_string(stopped + 2);
  const Result second = run(train_in(dir.path(), {"train.steps=" + steps}));
  EXPECT_EQ(second.code, 0) << second.err;
  for (const std::string& part : {"at step " + std::to_string(stopped) + " of " + steps, "finished " + steps}) {
    EXPECT_NE(second.err.find(part), std::string::npos) << part << "\n" << second.err;
  }
}

}  // namespace
}  // namespace hrm
