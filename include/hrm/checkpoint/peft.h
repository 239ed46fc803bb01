#pragma once
// Low-rank adapters in folders of the PEFT library: adapter_config.json and adapter_model.safetensors.

#include <filesystem>
#include <string>

#include "hrm/formats/peft_config.h"
#include "hrm/nn/lora.h"

namespace hrm::checkpoint {

// Whether a folder has the configuration of an adapter; the rest of it may be missing.
bool is_peft_folder(const std::filesystem::path& path);

// Throws Error(checkpoint), one sentence: a folder or file that is not there, and as parse_peft_config.
PeftConfig read_peft_config(const std::filesystem::path& folder);

// Fills the adapters of a model. They must have the file's rank, scale and targets. Throws Error(checkpoint) as above,
// and with all tensors that are missing, unknown or of another shape.
void load_peft(const std::filesystem::path& folder, nn::LoraSet& lora);

// A folder that PEFT opens, float32, whole or not at all; `base_model`: the folder or name of the frozen model. Throws
// Error(environment) where `folder` is there already and not empty, or cannot be written.
void write_peft(const std::filesystem::path& folder, const nn::LoraSet& lora, const std::string& base_model);

}  // namespace hrm::checkpoint
