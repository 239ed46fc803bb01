#include "hrm/base/build_info.h"

// Generated at each build; included here alone, because it changes with every commit.
#include "hrm/version.h"

namespace hrm {

const std::vector<std::pair<std::string, std::string>>& build_info() {
  static const std::vector<std::pair<std::string, std::string>> info = {
      {"version", HRM_VERSION},         {"commit", HRM_COMMIT},         {"torch", HRM_TORCH_VERSION},
      {"cuda", HRM_CUDA_VERSION},       {"cuda_archs", HRM_CUDA_ARCHS}, {"build_type", HRM_BUILD_TYPE},
      {"compiler", "g++ " __VERSION__},
  };
  return info;
}

std::string build_info(const std::string& name) {
  for (const auto& [key, value] : build_info()) {
    if (key == name) return value;
  }
  return "";
}

}  // namespace hrm
