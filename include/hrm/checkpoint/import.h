#pragma once
// Reads state dicts of the official HRM, TRM and URM trainers.

#include <filesystem>
#include <string>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

struct OfficialModel {
  ModelWeights weights;          // raw alone: the official trainers save one set
  models::PuzzleModelDims dims;  // seq_len is 0 where no weight tells it (RoPE, no position encoding)
};

// Reads `file`, a torch.save of a state dict with official names, with or without the prefixes "_orig_mod.",
// "model.inner." and "model.". The file must hold every parameter and buffer of the configured model and nothing else;
// all become float32. `from` is "hrm", "trm" or "urm". Throws Error(usage) if `from` is not the configuration's
// model.arch. Throws Error(checkpoint) if the file cannot be read, has unknown or missing entries, or contradicts the
// configuration: one sentence with all contradictions.
OfficialModel read_official(const std::filesystem::path& file, const std::string& from,
                            const config::ModelConfig& config);

}  // namespace hrm::checkpoint
