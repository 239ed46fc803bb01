#pragma once
// A training small enough for a unit test: 17-clue Sudoku, tiny model, everything a full run has.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "hrm/config/load.h"
#include "hrm/data/dataset.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/device.h"
#include "hrm/state/registry.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/train/trainer.h"
#include "support/first_rows.h"
#include "support/paths.h"

namespace hrm::testing {

// A fresh folder under the test's temporary directory, of this build: two trees may be tested at the same time.
inline std::filesystem::path fresh_folder(const std::string& name) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  auto path = std::filesystem::path(::testing::TempDir()) /
              cat("hrm_train_test_", std::hash<std::string>()(test::binary_dir())) /
              (std::string(info->test_suite_name()) + "." + info->name()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

// metrics.jsonl of the run without what the clock says.
inline std::string metrics_without_timing(const std::filesystem::path& dir) {
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::string line, out;
  while (std::getline(in, line)) out += line.substr(0, line.find(",\"perf/")) + "\n";
  return out;
}

inline config::LoadedConfig small_config(const std::filesystem::path& dir, const std::vector<std::string>& more = {}) {
  // Tests on a GPU evaluate more puzzles.
  const bool gpu = std::find(more.begin(), more.end(), "runtime.device=cuda") != more.end();
  std::vector<std::string> overrides = {
      "run.name=small",
      "run.dir=" + dir.string(),
      "data.train=" + test::first_rows("train_17clue_1k.csv", gpu ? 1000 : 200),
      "data.test=" + test::first_rows("test_17clue_2k.csv", gpu ? 2000 : 250),
      "data.augmentation=sudoku",
      "model.hidden_size=32",
      "model.H_layers=1",
      "model.L_layers=1",
      "model.H_cycles=1",
      "model.L_cycles=2",
      "model.halt_max_steps=3",
      "model.halt_exploration_prob=0.3",
      "optim.lr=1e-3",
      "optim.warmup_steps=2",
      "train.global_batch_size=8",
      "train.steps=8",
      "train.log_every=4",
      "eval.max_samples=4",
      "runtime.device=cpu",
      "runtime.threads=1",
  };
  // What nothing reads beside a setting of the test would be refused.
  const auto unless = [&](const char* other, const char* setting) {
    if (std::find(more.begin(), more.end(), other) == more.end()) overrides.emplace_back(setting);
  };
  unless("optim.schedule=constant", "optim.min_ratio=0.1");
  unless("model.mlp_t=true", "model.num_heads=2");
  unless("model.puzzle_emb_ndim=0", "optim.puzzle_emb_lr=1e-3");
  overrides.insert(overrides.end(), more.begin(), more.end());
  config::LoadedConfig loaded = config::load_config({}, overrides);
  config::validate(loaded);
  return loaded;
}

// Task and trainer of one process of a run.
template <class TaskType>
struct SmallTraining {
  config::LoadedConfig loaded;
  Runtime runtime;
  TaskType task;
  train::Trainer trainer;

  SmallTraining(const config::LoadedConfig& config, const std::filesystem::path& dir,
                const std::shared_ptr<parallel::Comm>& comm)
      : loaded(config),
        runtime(ops::start_runtime_and_ops(loaded.config)),
        task(loaded.config, runtime, comm),
        trainer(loaded.config, loaded.to_json(), runtime, task, dir / "small", comm) {}

  std::map<std::string, at::Tensor> tensors() {
    std::map<std::string, at::Tensor> out;
    for (const TensorEntry& entry : list_state(trainer).tensors) out[entry.name] = entry.tensor.detach().clone();
    return out;
  }
};

struct SmallRun : SmallTraining<tasks::PuzzleTask> {
  explicit SmallRun(const std::filesystem::path& dir, const std::vector<std::string>& more = {},
                    const std::shared_ptr<parallel::Comm>& comm = nullptr)
      : SmallTraining(small_config(dir, more), dir, comm) {}
};

}  // namespace hrm::testing
