#pragma once
// A small training of Sudokus by the program, and what tests damage in it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/first_rows.h"
#include "support/paths.h"

namespace hrm::test {

namespace fs = std::filesystem;

// A puzzle of the training file, and its only solution.
inline constexpr const char* kPuzzle =
    "................12....34.........5....1..6.....7...3...1.7.2.6.34.......5....8...";
inline constexpr const char* kSolution =
    "165827934483965712729134658694273581831596247257481396918752463342619875576348129";

inline std::string replaced(std::string text, size_t at, char by) {
  text[at] = by;
  return text;
}

inline void write_bytes(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

inline void flip_byte(const fs::path& file) {
  std::string bytes = read(file);
  ASSERT_FALSE(bytes.empty()) << file;
  char& middle = bytes[bytes.size() / 2];
  middle = static_cast<char>(middle ^ 1);
  write_bytes(file, bytes);
}

// `train` with the smallest model, 4 steps of 8 Sudokus, a checkpoint after 2 and one at the end, in dir/run.
inline std::vector<std::string> train_in(const fs::path& dir, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train",
                                        "run.dir=" + dir.string(),
                                        "data.train=" + first_rows("train_17clue_1k.csv", 100),
                                        "data.test=" + first_rows("test_17clue_2k.csv", 100),
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

inline fs::path step_dir(const fs::path& dir, int64_t step) {
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
  static inline std::unique_ptr<TempDir> original_;
};

}  // namespace hrm::test
