#pragma once
// What a run with precision.fake_quantize says, and which weights it exports.

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/tasks/export_request.h"

namespace hrm::tasks {

// A line for the start of the log, with the line break before it; empty without fake quantisation.
std::string describe_fake_quantize(const config::Config& config, torch::nn::Module& model);

// `weights` by the names of `model`, which may be on the meta device, become those that the run computes with: rounded
// to 8 bits and dequantised, in float32. Those for a file with 8-bit weights stay masters, whose rounding the writer
// does itself. Error(usage) for a file in the other 8-bit format. Nothing without fake quantisation.
void round_exported(std::vector<std::pair<std::string, at::Tensor>>& weights, torch::nn::Module& model,
                    const config::Config& config, const ExportRequest& request);

}  // namespace hrm::tasks
