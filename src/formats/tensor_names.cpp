#include "hrm/formats/tensor_names.h"

#include <algorithm>
#include <array>

#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr std::array<std::string_view, 5> kWrapperParts{"module", "_orig_mod", "_fsdp_wrapped_module",
                                                        "_checkpoint_wrapped_module", "_forward_module"};
constexpr std::array<std::string_view, 3> kOuterParts{"base_model", "model", "inner"};
constexpr std::string_view kAdapterName = "default";

template <size_t count>
bool is_one_of(std::string_view part, const std::array<std::string_view, count>& parts) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

}  // namespace

std::string core_tensor_name(std::string_view name) {
  std::string core;
  for (size_t start = 0; start <= name.size();) {
    const size_t dot = std::min(name.find('.', start), name.size());
    const std::string_view part = name.substr(start, dot - start);
    const bool last = dot == name.size();
    const bool outer = core.empty() && is_one_of(part, kOuterParts);
    const bool adapter = !core.empty() && part == kAdapterName;
    start = dot + 1;
    if (!last && (outer || adapter || is_one_of(part, kWrapperParts))) continue;
    if (!core.empty()) core += '.';
    core += part;
  }
  // PEFT names some parameters by their adapter alone.
  const std::string end = "." + std::string(kAdapterName);
  if (core.ends_with(end)) core.resize(core.size() - end.size());
  return core;
}

std::map<std::string, std::string> by_core_name(const std::vector<std::string>& names, const std::string& origin,
                                                ExitCode code) {
  std::map<std::string, std::string> cores;
  for (const std::string& name : names) {
    const auto [first, is_new] = cores.emplace(core_tensor_name(name), name);
    require(is_new, code, "'", origin, "' holds the tensors '", printable_start(first->second), "' and '",
            printable_start(name), "', which differ by the names of wrappers alone; keep one of them");
  }
  return cores;
}

}  // namespace hrm
