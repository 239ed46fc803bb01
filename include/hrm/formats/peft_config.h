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
  bool rslora = false, dora = false;
  // target_modules as names, sorted: whole ones, ends of such, or only "all-linear". Empty with a pattern.
  std::vector<std::string> targets;
  std::string pattern;                       // or a text that the whole name of a layer matches
  std::vector<std::string> modules_to_save;  // sorted: what is trained whole
  std::string base_model;                    // as the file names it; may be empty
  std::string target_list() const;           // "k_proj,q_proj", "pattern:...", as lora.targets has them
};

constexpr const char* kAllLinear = "all-linear";
constexpr const char* kTargetPattern = "pattern:";

// Throws Error(code) as "origin: reason": invalid JSON, an unsupported adapter (another peft_type, biases, ranks of
// single layers), a value of another type.
PeftConfig parse_peft_config(std::string_view text, const std::string& origin, ExitCode code);

}  // namespace hrm
