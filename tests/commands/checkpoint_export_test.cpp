// export --to checkpoint: one set of weights to hand on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/tasks/puzzle_inference.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::commands {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

// A run with averages and with settings that belong to one machine.
class CheckpointExport : public ::testing::Test {
 protected:
  void SetUp() override {
    ImportOptions import;
    import.from = "hrm";
    import.path = (fs::path(test::source_dir()) / "tests/fixtures/checkpoint_hrm/step_12").string();
    import.overrides = {"model.arch=hrm",   "model.hidden_size=32", "model.num_heads=2",
                        "model.H_layers=1", "model.L_layers=1",     "model.puzzle_emb_ndim=32"};
    import.out = (dir_ / "imported").string();
    run_import(import);
    const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(import.out);
    trained_ = checkpoint::load_weights(found.dir);
    for (const auto& [name, tensor] : trained_.raw) trained_.ema.emplace_back(name, tensor * 0.7);
    checkpoint::CheckpointMeta meta = found.meta;
    meta.step = 30;
    meta.info.insert({{"seq_len", "81"}, {"score", "0.5"}, {"digest of the next batch", "0"}, {"gemm_choices", "[]"}});
    meta.config_json =
        config::config_from_json_text(meta.config_json, "config.json",
                                      {"run.dir=/home/somebody/runs", "data.train=/home/somebody/puzzles",
                                       "data.test=data/sudoku/test_17clue_2k.csv", "runtime.device=cuda",
                                       "parallel.interface=eth7", "eval.weights=ema", "optim.ema=0.9"})
            .to_json();
    checkpoint::save_weights(dir_ / "run", trained_, meta, 1);
  }

  ExportOptions options(const std::string& out, const std::string& dtype) const {
    ExportOptions options;
    options.to = "checkpoint";
    options.checkpoint = (dir_ / "run").string();
    options.out = (dir_ / out).string();
    options.dtype = dtype;
    return options;
  }
  // The weights that the model of a checkpoint computes with.
  static std::map<std::string, at::Tensor> opened(const fs::path& path) {
    const std::vector<std::string> overrides = {"runtime.device=cpu"};
    const tasks::PuzzleInference model = tasks::open_puzzle_model(path, overrides, "auto", /*seq_len=*/81);
    std::map<std::string, at::Tensor> weights;
    for (const auto& item : model.model->named_parameters()) weights[item.key()] = item.value().detach();
    for (const auto& item : model.model->named_buffers()) weights[item.key()] = item.value();
    return weights;
  }

  TempDir dir_;
  checkpoint::ModelWeights trained_;
};

TEST_F(CheckpointExport, HoldsTheAveragesInFloat32) {
  EXPECT_EQ(run_export(options("out", "float32")), 0);
  const checkpoint::ModelWeights stored = checkpoint::load_weights(dir_ / "out");
  EXPECT_TRUE(stored.ema.empty());
  ASSERT_EQ(stored.raw.size(), trained_.ema.size());
  const auto read = opened(dir_ / "out"), original = opened(dir_ / "run");
  for (size_t i = 0; i < stored.raw.size(); ++i) {
    const auto& [name, tensor] = stored.raw[i];
    EXPECT_EQ(name, trained_.ema[i].first);
    EXPECT_TRUE(at::equal(tensor, trained_.ema[i].second)) << name;
    EXPECT_TRUE(at::equal(read.at(name), original.at(name))) << name;
  }
}

TEST_F(CheckpointExport, OnlyRoundsInBfloat16) {
  EXPECT_EQ(run_export(options("out", "bfloat16")), 0);
  const auto read = opened(dir_ / "out");
  int64_t rounded = 0;
  for (const auto& [name, tensor] : trained_.ema) {
    EXPECT_EQ(read.at(name).scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::equal(read.at(name), tensor.to(at::kBFloat16).to(at::kFloat))) << name;
    rounded += at::equal(read.at(name), tensor) ? 0 : 1;
  }
  EXPECT_GT(rounded, 0) << "bfloat16 must have lost something";
  EXPECT_EQ(read.size(), trained_.ema.size()) << "the puzzles' rows included";
  EXPECT_EQ(read.count("puzzle_emb.weights"), 1U);
  // Exporting this one again keeps its values, whatever the dtype.
  ExportOptions again = options("again", "float32");
  again.checkpoint = (dir_ / "out").string();
  EXPECT_EQ(run_export(again), 0);
  const checkpoint::ModelWeights wide = checkpoint::load_weights(dir_ / "again");
  for (const auto& [name, tensor] : wide.raw) {
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::equal(tensor, read.at(name))) << name;
  }
  EXPECT_LT(fs::file_size(dir_ / "out/model.pt"), fs::file_size(dir_ / "again/model.pt"));
}

TEST_F(CheckpointExport, TheRawSetWhereItIsAskedFor) {
  ExportOptions raw = options("out", "float32");
  raw.weights = "raw";
  EXPECT_EQ(run_export(raw), 0);
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(dir_ / "out");
  EXPECT_EQ(found.meta.info.at("weights"), "raw, float32");
  const auto stored = checkpoint::load_weights(found.dir).raw;
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_TRUE(at::equal(stored[i].second, trained_.raw[i].second)) << stored[i].first;
  }
}

TEST_F(CheckpointExport, NothingOfTheMachineGoesAlong) {
  EXPECT_EQ(run_export(options("out", "bfloat16")), 0);
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(dir_ / "out");
  EXPECT_EQ(found.meta.step, 30);
  EXPECT_EQ(found.meta.info.at("weights"), "averaged, bfloat16");
  EXPECT_EQ(found.meta.info.at("seq_len"), "81");
  for (const char* of_resume : {"score", "digest of the next batch", "gemm_choices"}) {
    EXPECT_EQ(found.meta.info.count(of_resume), 0U) << of_resume;
  }
  EXPECT_EQ(found.meta.config_json.find("somebody"), std::string::npos);
  const config::Config config = config::config_from_json_text(found.meta.config_json, "config.json").config;
  EXPECT_EQ(config.run.dir, "runs");
  EXPECT_EQ(config.data.train, "");
  EXPECT_EQ(config.data.test, "data/sudoku/test_17clue_2k.csv") << "a folder of the project is one everywhere";
  EXPECT_EQ(name_of(config.runtime.device), "auto");
  EXPECT_EQ(config.parallel.interface, "");
  EXPECT_EQ(name_of(config.eval.weights), "auto");
  EXPECT_EQ(config.model.hidden_size, 32);
  EXPECT_EQ(config.optim.ema, 0.9) << "a recipe's setting";
}

TEST_F(CheckpointExport, RefusesInOneSentence) {
  ExportOptions wrong = options("out", "half");
  expect_error(ExitCode::usage, {"'half'", "float32, bfloat16, fp8 or int8"}, [&] { run_export(wrong); });
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  fs::create_directory(dir_ / "full");
  std::ofstream(dir_ / "full" / "README.md") << "a card";
  expect_error(ExitCode::environment, {"full", "exists already"}, [&] { run_export(options("full", "bfloat16")); });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "full"), {}), 1);
  expect_error(ExitCode::environment, {"/proc/hrm"}, [&] { run_export(options("/proc/hrm/x", "bfloat16")); });
}

// Of a checkpoint with one set, all know which one it is.
TEST_F(CheckpointExport, TheChosenSetKeepsItsName) {
  const auto export_from = [&](const std::string& from, const std::string& weights) {
    ExportOptions again = options(from + "_" + weights, "float32");
    again.checkpoint = (dir_ / from).string();
    again.weights = weights;
    EXPECT_EQ(run_export(again), 0);
    return checkpoint::open_checkpoint(again.out).meta.info.at("weights");
  };
  EXPECT_EQ(export_from("run", "raw"), "raw, float32");
  EXPECT_EQ(export_from("run", "ema"), "averaged, float32");
  EXPECT_EQ(export_from("run_ema", "ema"), "averaged, float32");
  EXPECT_EQ(export_from("run_ema", "auto"), "averaged, float32");
  EXPECT_EQ(export_from("run_raw", "auto"), "raw, float32");
  expect_error(ExitCode::checkpoint, {"no averaged weights", "chose one set"}, [&] { export_from("run_raw", "ema"); });
  expect_error(ExitCode::checkpoint, {"only averaged weights", "eval.weights=auto"},
               [&] { export_from("run_ema", "raw"); });
  const std::vector<std::string> overrides = {"runtime.device=cpu"};
  EXPECT_TRUE(tasks::open_puzzle_model(dir_ / "run_ema", overrides, "auto", 81).averaged);
  EXPECT_FALSE(tasks::open_puzzle_model(dir_ / "run_raw", overrides, "auto", 81).averaged);
}

}  // namespace
}  // namespace hrm::commands
