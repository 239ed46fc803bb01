#pragma once
// The text of the exported TorchScript classes. They say what src/models/ computes, in aten operations alone.

#include <string>

#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

// A literal that reads back as the same double.
std::string literal(double value);
// The method rotate(x, cos, sin): x (..., head_dim), tables that broadcast to half of it.
std::string rotate_source(int64_t head_dim);
// Lines of a method that make cos and sin, (`rows`, 1, hd / 2), from self.inv_freq on the device of x, times `factor`.
std::string tables_source(const std::string& rows, double factor = 1);

// Methods of each class, as Module::define takes them. Classes call their submodules by the names that the exporter
// registers: qkv_proj, o_proj, gate_up_proj, down_proj, self_attn, mlp, mlp_t, dwconv, layer<i>, L_level, H_level. With
// flat names the model has the layers itself.
std::string linear_source(bool bias);
enum class Gate { silu, gelu };  // gelu: its tanh approximation
std::string swiglu_source(bool convolution = false, Gate gate = Gate::silu);
std::string attention_source(const config::ModelConfig& config);
std::string block_source(const config::ModelConfig& config);
// `method`: its name.
std::string level_source(const config::ModelConfig& config, int64_t layers, const std::string& method = "forward");
std::string model_source(const config::ModelConfig& config, const models::PuzzleModelDims& dims);

}  // namespace hrm::checkpoint
