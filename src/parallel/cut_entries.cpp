#include "hrm/parallel/cut_entries.h"

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

}  // namespace

CutEntries::CutEntries(const nn::ParameterSet& parameters, StateVisitor& inner) : inner_(inner) {
  for (const nn::Parameter& parameter : parameters.all()) {
    if (parameter.cut.whole()) continue;
    by_master_[parameter.master.unsafeGetTensorImpl()] = &parameter;
    by_name_[parameter.name] = &parameter;
  }
}

const nn::Parameter* CutEntries::parameter_of(const std::string& name, const at::Tensor& tensor, StateRole role) const {
  const auto named = [&](const std::string& of) {
    const auto found = by_name_.find(of);
    return found == by_name_.end() ? nullptr : found->second;
  };
  switch (role) {
    case StateRole::weight: {
      const auto found = by_master_.find(tensor.unsafeGetTensorImpl());
      return found == by_master_.end() ? nullptr : found->second;
    }
    case StateRole::ema:
      return name.starts_with("ema.") ? named(name.substr(4)) : nullptr;
    case StateRole::optimizer: {
      const size_t moment = name.rfind('.');
      return name.starts_with("optim.") && moment > 6 ? named(name.substr(6, moment - 6)) : nullptr;
    }
    default:
      return nullptr;
  }
}

void CutEntries::tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) {
  const nn::Parameter* const parameter = parameter_of(name, tensor, role);
  if (parameter == nullptr) return inner_.tensor(name, tensor, role, part);
  require(!part.split && tensor.sizes() == parameter->master.sizes(), ExitCode::unexpected, "'", name,
          "' is a part of the cut parameter '", parameter->name, "' in another form");
  inner_.tensor(name, tensor, role, part_of(parameter->cut, tensor.sizes()));
}

}  // namespace hrm::parallel
