#pragma once
// Where a registered entry is in model.pt.

#include <string>

#include "hrm/state/registry.h"

namespace hrm::checkpoint {

inline constexpr const char* kEmaPrefix = "ema.";

inline std::string without_prefix(const std::string& name, const std::string& prefix) {
  return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
}

// Weights are at their official name, whatever object registered them ("model.H_init" -> "H_init"), and averages at
// the same name inside the module "ema".
inline std::string archive_name(const TensorEntry& entry) {
  if (entry.role == StateRole::weight) return without_prefix(entry.name, "model.");
  return kEmaPrefix + without_prefix(without_prefix(entry.name, kEmaPrefix), "model.");
}

inline bool in_model_file(StateRole role) {
  return role == StateRole::weight || role == StateRole::ema;
}

}  // namespace hrm::checkpoint
