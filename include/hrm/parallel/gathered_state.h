#pragma once
// State that is spread over ranks, as the whole that a checkpoint holds: a run may continue with another number of
// ranks.

#include <memory>
#include <string>

#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// The entries of another Stateful, with each tensor of which this rank has a part (StateSlice) in full: slice
// {0, global_rows}. A share of several tensors (StateSlice::flat) becomes these, whole, on the CPU. All other entries
// are those of the other object itself. With one rank nothing is copied.
class GatheredState : public Stateful {
 public:
  // For saving: collects the parts from all ranks, a collective operation. `state` and `comm` must outlive this. Parts
  // are equally long, in the order of ranks, along dimension 0. Shards travel in pieces of some MiB, and only rank 0
  // keeps the whole: other ranks cannot visit such entries. Throws as Comm.
  static GatheredState collect(Stateful& state, Comm& comm);

  // For loading: room for the whole on the CPU, whose content hand_out() copies, this rank's part, into `state`.
  static GatheredState room_for(Stateful& state);
  void hand_out();

  void visit_state(StateVisitor& visitor) override;

 private:
  struct Part {
    std::string name;
    at::Tensor part, whole;  // of a share the flat vector
    StateSlice slice;
  };
  explicit GatheredState(Stateful& state) : state_(state) {}

  Stateful& state_;
  std::vector<Part> parts_;
};

// Checks that all ranks have the same entries, except those that are split over ranks. Otherwise throws Error
// (ExitCode::rank_failed) on every rank, naming the first rank that differs from rank 0 and an entry that differs.
// Copies tensors to the CPU.
void check_replicas(Stateful& state, Comm& comm);

}  // namespace hrm::parallel
