#include "hrm/parallel/cut_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

const nn::ParameterCut* find_cut(const NamedCuts& cuts, const std::string& entry) {
  constexpr std::string_view kAverage = "ema.", kOptimizer = "optim.";
  std::string name = entry;
  if (name.starts_with(kAverage)) name = name.substr(kAverage.size());
  if (name.starts_with(kOptimizer)) name = name.substr(kOptimizer.size(), name.rfind('.') - kOptimizer.size());
  const auto found = cuts.find(name);
  return found == cuts.end() || found->second.whole() ? nullptr : &found->second;
}

// The whole on the first rank's CPU, elsewhere undefined.
at::Tensor collect_whole(const at::Tensor& part, nn::ParameterCut cut, Comm& comm) {
  const int64_t dimension = cut.dimension();
  // The last part of a vocabulary may have fewer rows.
  int64_t most = 0;
  for (int rank = 0; rank < comm.ranks(); ++rank) {
    cut.cut.part = rank;
    int64_t size = 0;
    for (const nn::ParameterCut::Box& box : cut.boxes()) size += box.size;
    most = std::max(most, size);
  }
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[static_cast<size_t>(dimension)] = most;
  const at::Tensor own = at::zeros(sizes, part.options());
  own.narrow(dimension, 0, part.size(dimension)).copy_(part);
  sizes.insert(sizes.begin(), comm.ranks());
  const at::Tensor all = at::empty(sizes, part.options());
  comm.all_gather(all, own.unsqueeze(0));
  if (!comm.main()) return {};
  const at::Tensor host = all.to(at::kCPU), whole = at::empty(cut.whole_sizes(part.sizes()), host.options());
  for (int rank = 0; rank < comm.ranks(); ++rank) {
    cut.cut.part = rank;
    for (const nn::ParameterCut::Box& box : cut.boxes()) {
      whole.narrow(dimension, box.there, box.size).copy_(host[rank].narrow(dimension, box.here, box.size));
    }
  }
  return whole;
}

}  // namespace

CutState CutState::collect(Stateful& state, const NamedCuts& cuts, Comm& tensor) {
  const at::NoGradGuard no_grad;
  CutState collected(state);
  if (tensor.alone() || cuts.empty()) return collected;
  for (const TensorEntry& entry : list_state(state).tensors) {
    const nn::ParameterCut* const cut = find_cut(cuts, entry.name);
    if (cut == nullptr) continue;
    const at::Tensor part = entry.tensor.detach();
    collected.parts_.push_back({entry.name, part, collect_whole(part, *cut, tensor), *cut});
  }
  return collected;
}

CutState CutState::room_for(Stateful& state, const NamedCuts& cuts) {
  CutState room(state);
  if (cuts.empty()) return room;
  for (const TensorEntry& entry : list_state(state).tensors) {
    const nn::ParameterCut* const cut = find_cut(cuts, entry.name);
    if (cut == nullptr) continue;
    const at::Tensor part = entry.tensor.detach();
    const auto host = part.options().device(at::kCPU);
    room.parts_.push_back({entry.name, part, at::empty(cut->whole_sizes(part.sizes()), host), *cut});
  }
  return room;
}

void CutState::hand_out() {
  const at::NoGradGuard no_grad;
  for (const Part& part : parts_) part.part.copy_(part.cut.part_of(part.whole));
}

void CutState::visit_state(StateVisitor& visitor) {
  // Passes all entries on, those that are cut as a whole.
  class Whole : public StateVisitor {
   public:
    Whole(StateVisitor& inner, std::vector<Part>& parts) : inner_(inner), parts_(parts) {}
    void tensor(const std::string& name, at::Tensor& tensor, StateRole role, StateSlice slice) override {
      const auto found =
          std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
      if (found == parts_.end()) return inner_.tensor(name, tensor, role, slice);
      require(found->whole.defined(), ExitCode::unexpected, "the first rank of its axis alone has all of '", name, "'");
      inner_.tensor(name, found->whole, role, {});
    }
    void integer(const std::string& name, int64_t& value) override { inner_.integer(name, value); }
    void real(const std::string& name, double& value) override { inner_.real(name, value); }

   private:
    StateVisitor& inner_;
    std::vector<Part>& parts_;
  };
  Whole whole(visitor, parts_);
  state_.visit_state(whole);
}

}  // namespace hrm::parallel
