#pragma once
// Which ranks hold which entries of the state, and whether those that hold the same agree.

#include <set>
#include <string>

#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// What this rank writes into a checkpoint of all ranks: of entries that several ranks hold alike the first of them.
struct OwnedEntries {
  bool any_split = false;       // some rank holds only a part of some entry
  bool split_weights = false;   // of a weight or an average
  std::set<std::string> names;  // of tensors
  bool scalars = false;         // rank 0
};

// A collective operation. Throws Error(unexpected) on every rank when an entry is whole on one rank and a part on
// another.
OwnedEntries owned_entries(Stateful& state, Comm& comm);

// The owned entries of a state, those alone.
class OwnedState : public Stateful {
 public:
  // `state` must outlive this.
  OwnedState(Stateful& state, OwnedEntries owned) : state_(state), owned_(std::move(owned)) {}
  const OwnedEntries& owned() const { return owned_; }
  void visit_state(StateVisitor& visitor) override;

 private:
  Stateful& state_;
  OwnedEntries owned_;
};

// Checks that ranks that hold the same agree: entries that are whole everywhere, and parts with the same boxes.
// Otherwise throws Error(ExitCode::rank_failed) on every rank, naming a rank that differs from the first one that holds
// the entry. Copies these tensors to the CPU. A collective operation.
void check_replicas(Stateful& state, Comm& comm);

}  // namespace hrm::parallel
