#pragma once
// The state of a rank that holds a part of a model (tensor parallelism), as parts of the whole model's state.

#include <map>
#include <string>

#include "hrm/nn/cut.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// How parameters are cut, by the names that they have in checkpoints.
using NamedCuts = std::map<std::string, nn::ParameterCut>;

// Hands entries on to another visitor, and says of those of cut parameters where they are in the whole: of the weight
// itself, "optim.<name>.<moment>" and "ema.<name>". So a checkpoint holds whole weights, and a run goes on with another
// number of parts. An entry may also be runs of elements of this rank's part (ParameterShards).
class CutEntries : public StateVisitor {
 public:
  // Both must outlive this.
  CutEntries(const NamedCuts& cuts, StateVisitor& inner) : cuts_(cuts), inner_(inner) {}

  void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part = {}) override;
  void integer(const std::string& name, int64_t& value) override { inner_.integer(name, value); }
  void real(const std::string& name, double& value) override { inner_.real(name, value); }

 private:
  const NamedCuts& cuts_;
  StateVisitor& inner_;
};

}  // namespace hrm::parallel
