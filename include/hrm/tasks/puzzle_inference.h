#pragma once
// A trained puzzle model, ready to answer: what `eval`, `solve` and the export check start from.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/data/puzzle_vocabulary.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct PuzzleInference : TrainedModel {
  std::shared_ptr<models::PuzzleModel> model;
  // The symbols of the training data, if they came with it.
  std::optional<data::PuzzleVocabulary> vocabulary;
};

// `run_or_step`: a run folder (its newest valid checkpoint) or a checkpoint folder. `weights`: auto (the average where
// there is one), raw or ema. `seq_len`: length of the puzzles, used only where the checkpoint does not say it (an
// imported model with RoPE). Error(checkpoint) or Error(usage) with one sentence.
PuzzleInference open_puzzle_model(const std::filesystem::path& run_or_step, const std::vector<std::string>& overrides,
                                  const std::string& weights, std::optional<int64_t> seq_len);
PuzzleInference open_puzzle_model(const StoredModel& stored, const std::string& weights,
                                  std::optional<int64_t> seq_len);

}  // namespace hrm::tasks
