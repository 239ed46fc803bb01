// Places that cannot be written and what a machine lacks, as users meet them: each ends in the right exit code and one
// sentence that says what is wrong, and where; what was saved before stays as it was.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "cli/finished_run.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::FinishedRun;
using test::kPuzzle;
using test::read;
using test::Result;
using test::run;
using test::TempDir;
using test::train_in;
using test::write_bytes;

TEST_F(FinishedRun, ResultsThatCannotBeWritten) {
  const std::string binary = test::quoted(test::train_binary());
  const std::string command = "OMP_NUM_THREADS=1 timeout 60 " + binary + " eval --checkpoint " +
                              test::quoted(run_dir().string()) + " eval.batch_size=4 >/dev/full 2>" +
                              test::quoted((dir_ / "err").string());
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::environment));
  test::expect_one_sentence(read(dir_ / "err"), {"standard output"}, /*alone=*/false);
}

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
  EXPECT_NE(first.err().find("(SIGTERM); start it again to resume"), std::string::npos) << first.err();
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
