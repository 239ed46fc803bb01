#pragma once
// Names of a model's tensors whatever program saved them: wrappers put parts of their own into each name.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

// The name without the parts that wrappers add. Anywhere: `module` (DataParallel, DDP), `_orig_mod` (torch.compile),
// `_fsdp_wrapped_module`, `_checkpoint_wrapped_module` and `_forward_module`. After the beginning: `default` (the name
// of PEFT's first adapter). At the beginning, any number in any order: `base_model`, `model` and `inner`. For example
// "module._orig_mod.model.layers.0.mlp.up_proj.weight" is "layers.0.mlp.up_proj.weight". The last part always stays.
std::string core_tensor_name(std::string_view name);

// All names by their core names. Throws Error(code), naming `origin` and both, where two names have one core name.
std::map<std::string, std::string> by_core_name(const std::vector<std::string>& names, const std::string& origin,
                                                ExitCode code);

}  // namespace hrm
