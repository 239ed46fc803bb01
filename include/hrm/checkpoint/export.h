#pragma once
// Writes the weights of a checkpoint for other programs. Each writes one file, whole or not at all; Error(environment)
// when it cannot.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/config.h"

namespace hrm::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// A safetensors file; names are the official ones with the prefix "model.inner.".
void export_safetensors(const NamedTensors& weights, const std::filesystem::path& file);

// A state dict that Python's torch.load opens with its default settings; names have the official trainer's prefix
// "_orig_mod.model.inner.", so that the official code loads it. H_init and L_init are bfloat16, as the official bf16
// models have them, where that loses nothing.
void export_pt(const NamedTensors& weights, const std::filesystem::path& file);

// A TorchScript module that Python's torch.jit.load opens and runs in float32:
//   forward(inputs: (B, S) int, puzzle_identifiers: (B) int, segments: int)
//     -> (logits (B, S, V), q_halt (B), q_continue (B)), all float32, after `segments` segments from a fresh carry.
// Parameters have the official names with "layers.<i>" spelt "layer<i>", because TorchScript calls submodules by
// identifier. Throws Error(checkpoint) when the weights do not belong to the configuration.
void export_torchscript(const config::ModelConfig& config, const NamedTensors& weights,
                        const std::filesystem::path& file);

// The source of that module, class by class; for reading and for tests.
std::string torchscript_source(const config::ModelConfig& config, const NamedTensors& weights);

}  // namespace hrm::checkpoint
