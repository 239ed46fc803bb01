#pragma once
// A trained puzzle model, ready to answer: what `eval`, `solve` and the export check start from.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/runtime/device.h"

namespace hrm::tasks {

struct PuzzleInference {
  config::Config config;  // the checkpoint's, with the overrides
  Runtime runtime;
  std::shared_ptr<models::PuzzleModel> model;
  std::filesystem::path checkpoint;  // the step folder
  int64_t step = 0;
  bool averaged = false;  // the weights are the moving average
};

// `run_or_step`: a run folder (its newest valid checkpoint) or a checkpoint folder. `weights`: auto (the average where
// there is one), raw or ema. `seq_len`: length of the puzzles, used only where the checkpoint does not say it (an
// imported model with RoPE). Error(checkpoint) or Error(usage) with one sentence.
PuzzleInference open_puzzle_model(const std::filesystem::path& run_or_step, const std::vector<std::string>& overrides,
                                  const std::string& weights, std::optional<int64_t> seq_len);

// The configuration of a checkpoint, with overrides, without opening the model.
config::Config stored_config(const std::filesystem::path& run_or_step, const std::vector<std::string>& overrides);

}  // namespace hrm::tasks
