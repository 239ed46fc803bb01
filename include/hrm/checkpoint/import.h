#pragma once
// Reads state dicts of the official HRM and TRM trainers.

#include <filesystem>
#include <string>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

// Reads `file`, a torch.save of a state dict with official names, with or without the prefixes "_orig_mod.",
// "model.inner." and "model.". Every parameter of the configured model must be in the file and nothing else; all
// become float32. `from` is "hrm" or "trm". Throws Error(checkpoint) when the file cannot be read, has unknown or
// missing entries, or contradicts the configuration: one sentence with all contradictions.
ModelWeights read_official(const std::filesystem::path& file, const std::string& from,
                           const config::ModelConfig& config);

// The sizes of the model that these weights belong to. seq_len is 0 where no weight tells it (RoPE, no position
// encoding). Throws Error(checkpoint) when weights and configuration contradict each other; `source` names the
// weights in the sentence.
models::PuzzleModelDims infer_dims(const config::ModelConfig& config, const ModelWeights& weights,
                                   const std::string& source);

}  // namespace hrm::checkpoint
