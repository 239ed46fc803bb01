#pragma once
// State of a model that is cut over the ranks of an axis, as the whole that a checkpoint holds: a run may continue with
// another number of parts.

#include <map>
#include <string>
#include <vector>

#include "hrm/nn/cut.h"
#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// How parameters are cut, by the names that they have in checkpoints.
using NamedCuts = std::map<std::string, nn::ParameterCut>;

// The entries of another Stateful, with each cut parameter, its average ("ema.NAME") and its optimizer state
// ("optim.NAME.MOMENT") in full, on the CPU. All other entries are those of the other object itself. Without cuts
// nothing is copied.
class CutState : public Stateful {
 public:
  // For saving: collects the parts, a collective operation of the tensor axis. `state` must outlive this. Only the
  // first rank of the axis keeps the whole: others cannot visit such entries. Throws as Comm.
  static CutState collect(Stateful& state, const NamedCuts& cuts, Comm& tensor);

  // For loading: room for the whole, of which hand_out() copies this rank's part into `state`.
  static CutState room_for(Stateful& state, const NamedCuts& cuts);
  void hand_out();

  void visit_state(StateVisitor& visitor) override;

 private:
  struct Part {
    std::string name;
    at::Tensor part, whole;
    nn::ParameterCut cut;
  };
  explicit CutState(Stateful& state) : state_(state) {}

  Stateful& state_;
  std::vector<Part> parts_;
};

}  // namespace hrm::parallel
