#pragma once
// What the official names of weights tell about a model.

#include <string>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Checks that `weights` are exactly those of the configured model: all of its parameters and buffers by name and
// shape, nothing else. Returns the model's sizes; seq_len is 0 where no weight tells it (RoPE, no position encoding).
// Throws Error(checkpoint); `source` names the weights in the sentence.
models::PuzzleModelDims check_weights(const config::ModelConfig& config, const NamedTensors& weights,
                                      const std::string& source);

}  // namespace hrm::checkpoint
