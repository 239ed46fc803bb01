#pragma once
// adapter_config.json of the PEFT library: what an adapter of kind LoRA is like.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct PeftConfig {
  int64_t r = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false;
  std::vector<std::string> targets;  // sorted
  std::string base_model;            // as the file names it; may be empty
  std::string target_list() const;   // "k_proj,q_proj", as lora.targets has them
};

// Throws Error(code) as "origin: reason": no JSON, what is no adapter of this kind (another peft_type, biases, DoRA,
// ranks of single layers, layers that are trained whole), a value of another type.
PeftConfig parse_peft_config(std::string_view text, const std::string& origin, ExitCode code);

}  // namespace hrm
