#pragma once
// Defaults that are another task's than those of config.h. Private to config/.

#include <string>
#include <vector>

#include "hrm/config/load.h"
#include "hrm/config/schema.h"

namespace hrm::config {

struct TaskDefault {
  const char* key;
  Value (*value)(const Config& config);  // may look at what is resolved already: lora.r, train.steps
  const char* text;                      // the value in words, for 'config --describe'
};

// What fine-tuning a language model takes where nothing is said: those of config.h are for puzzles and models that
// learn from scratch.
const std::vector<TaskDefault>& polychromic_defaults();

}  // namespace hrm::config
