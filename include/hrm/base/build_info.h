#pragma once
// What this program was built from and for.

#include <string>
#include <utility>
#include <vector>

namespace hrm {

// In order: version, commit, torch, cuda ("none" without CUDA), cuda_archs ("80,90a", "none"), build_type, compiler.
const std::vector<std::pair<std::string, std::string>>& build_info();

// The value of one of these names; empty for an unknown one.
std::string build_info(const std::string& name);

}  // namespace hrm
