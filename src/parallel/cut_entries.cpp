#include "hrm/parallel/cut_entries.h"

#include <string_view>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

StatePart part_of(const nn::ParameterCut& cut, at::IntArrayRef here) {
  StatePart part{.split = true, .sizes = cut.whole_sizes(here), .boxes = {}};
  const auto dimension = static_cast<size_t>(cut.dimension());
  for (const nn::ParameterCut::Box& box : cut.boxes()) {
    if (box.size == 0) continue;
    StateBox out{std::vector<int64_t>(here.size()), std::vector<int64_t>(here.size()), here.vec()};
    out.here[dimension] = box.here;
    out.there[dimension] = box.there;
    out.sizes[dimension] = box.size;
    part.boxes.push_back(std::move(out));
  }
  return part;
}

// The name of the parameter that an entry belongs to.
std::string parameter_name(const std::string& entry, StateRole role) {
  constexpr std::string_view kAverage = "ema.", kOptimizer = "optim.";
  if (role == StateRole::ema && entry.starts_with(kAverage)) return entry.substr(kAverage.size());
  if (role == StateRole::optimizer && entry.starts_with(kOptimizer)) {
    const size_t moment = entry.rfind('.');
    return moment < kOptimizer.size() ? "" : entry.substr(kOptimizer.size(), moment - kOptimizer.size());
  }
  return role == StateRole::weight ? entry : "";
}

}  // namespace

void CutEntries::tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) {
  const auto found = cuts_.find(parameter_name(name, role));
  if (found == cuts_.end() || found->second.whole()) return inner_.tensor(name, tensor, role, part);
  require(!part.split, ExitCode::unexpected, "'", name, "' is a part of a part");
  inner_.tensor(name, tensor, role, part_of(found->second, tensor.sizes()));
}

}  // namespace hrm::parallel
