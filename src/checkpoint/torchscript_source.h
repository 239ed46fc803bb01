#pragma once
// The text of the exported TorchScript classes. They say what src/models/ computes, in aten operations alone.

#include <string>

#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

// Methods of each class, as Module::define takes them. Classes call their submodules by the names that the exporter
// registers: qkv_proj, o_proj, gate_up_proj, down_proj, self_attn, mlp, mlp_t, layer<i>, L_level, H_level.
std::string linear_source(bool bias);
std::string swiglu_source();
std::string attention_source(const config::ModelConfig& config);
std::string block_source(const config::ModelConfig& config);
std::string level_source(const config::ModelConfig& config, int64_t layers);
std::string model_source(const config::ModelConfig& config, const models::PuzzleModelDims& dims);

}  // namespace hrm::checkpoint
