#pragma once
// What the official names of weights tell about a model.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

// Checks that `weights` (official names without prefix, any device and dtype) are exactly those of the configured
// model: all parameters and buffers by name and shape, nothing else. Reads no values and builds no model of real size.
// Returns the model's sizes; seq_len is 0 if no weight shows it (RoPE, no position encoding). Throws Error(checkpoint).
// If configuration and weights contradict each other, the sentence has the overrides that would fit. `source` names the
// weights in the sentence.
models::PuzzleModelDims check_weights(const config::ModelConfig& config,
                                      const std::vector<std::pair<std::string, at::Tensor>>& weights,
                                      const std::string& source);

}  // namespace hrm::checkpoint
