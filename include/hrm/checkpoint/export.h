#pragma once
// Writes the weights of a checkpoint for other programs. Each writes one file, whole or not at all; Error(environment)
// when it cannot.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"

namespace hrm::checkpoint {

// `weights` below: official names without prefix, as in ModelWeights.

// A safetensors file; names are the official ones with the prefix "model.inner.".
void export_safetensors(const std::vector<std::pair<std::string, at::Tensor>>& weights,
                        const std::filesystem::path& file);

// A state dict that Python's torch.load opens with its default settings; names have the official trainer's prefix
// "_orig_mod.model.inner.", so that the official code loads it. H_init and L_init become bfloat16, as that code
// computing in bfloat16 has them, where it loses nothing.
void export_pt(const std::vector<std::pair<std::string, at::Tensor>>& weights, const std::filesystem::path& file);

// A TorchScript module that Python's torch.jit.load opens and runs in float32:
//   forward(inputs: (B, S) int, puzzle_identifiers: (B) int, segments: int)
//     -> (logits (B, S, V), q_halt (B), q_continue (B)), all float32, after `segments` segments from a fresh carry.
// Parameters have the official names with "layers.<i>" spelt "layer<i>", because TorchScript calls submodules by
// identifier. Throws Error(checkpoint) when the weights are not those of the configured model.
void export_torchscript(const config::ModelConfig& config,
                        const std::vector<std::pair<std::string, at::Tensor>>& weights,
                        const std::filesystem::path& file);

}  // namespace hrm::checkpoint
