#pragma once
// The state of a rank that holds a part of a model (tensor parallelism), as parts of the whole model's state.

#include <string>
#include <unordered_map>

#include "hrm/nn/parameter.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// Hands entries on to another visitor, and says of those of cut parameters where they are in the whole: of the weight
// itself, "optim.<name>.<moment>" and "ema.<name>". So a checkpoint holds whole weights, and a run goes on with another
// number of parts.
class CutEntries : public StateVisitor {
 public:
  // Both must outlive this.
  CutEntries(const nn::ParameterSet& parameters, StateVisitor& inner);

  void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part = {}) override;
  void integer(const std::string& name, int64_t& value) override { inner_.integer(name, value); }
  void real(const std::string& name, double& value) override { inner_.real(name, value); }

 private:
  const nn::Parameter* parameter_of(const std::string& name, const at::Tensor& tensor, StateRole role) const;

  StateVisitor& inner_;
  std::unordered_map<const void*, const nn::Parameter*> by_master_;
  std::unordered_map<std::string, const nn::Parameter*> by_name_;
};

}  // namespace hrm::parallel
