#pragma once
// Normalizes tensor names: wrappers such as DDP and torch.compile add their own parts to each name.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

// Removes the parts that wrappers add. The last part always stays. Removed are:
// - Anywhere: `module` (DataParallel, DDP), `_orig_mod` (torch.compile), `_fsdp_wrapped_module`,
// `_checkpoint_wrapped_module` and `_forward_module`.
// - After the first part: `default`, the name of PEFT's first adapter.
// - At the beginning, any number in any order: `base_model`, `model` and `inner`.
//
// For example, "module._orig_mod.model.layers.0.mlp.up_proj.weight" becomes "layers.0.mlp.up_proj.weight".
std::string core_tensor_name(std::string_view name);

// Maps core names to full names. Throws Error(code), naming `origin` and both names, if two have the same core name.
std::map<std::string, std::string> by_core_name(const std::vector<std::string>& names, const std::string& origin,
                                                ExitCode code);

}  // namespace hrm
