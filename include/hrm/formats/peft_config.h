#pragma once
// adapter_config.json of the PEFT library: the description of a LoRA adapter.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct PeftConfig {
  int64_t r = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false, dora = false;
  // The names in target_modules, sorted: full names, name suffixes, or only "all-linear". Empty if `pattern` is set.
  std::vector<std::string> targets;
  std::string pattern;                       // alternatively a regular expression for the full name of a layer
  std::vector<std::string> modules_to_save;  // modules trained in full, sorted
  std::string base_model;                    // as written in the file; may be empty
  std::string target_list() const;           // "k_proj,q_proj" or "pattern:...", as in lora.targets
};

constexpr const char* kAllLinear = "all-linear";
constexpr const char* kTargetPattern = "pattern:";

// Throws Error(code) as "origin: reason" for invalid JSON and for a value of the wrong type. Another peft_type, biases,
// and ranks of single layers are unsupported and also errors.
PeftConfig parse_peft_config(std::string_view text, const std::string& origin, ExitCode code);

}  // namespace hrm
