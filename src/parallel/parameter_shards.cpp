#include "hrm/parallel/parameter_shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/ops/grad_norm.h"
#include "parallel/over_ranks.h"

namespace hrm::parallel {
namespace {

// What a rank has of a member of a layout, in its share of the flat vector. One run at most: a member lies in one
// piece.
struct Held {
  at::Tensor tensor;
  StatePart part;
};

Held held_of(const FlatLayout& layout, const FlatLayout::Member& member, const at::Tensor& share) {
  const int64_t end = member.offset + c10::multiply_integers(member.sizes);
  for (const FlatLayout::Piece& piece : layout.pieces) {
    if (member.offset < piece.offset || member.offset >= piece.offset + piece.size) continue;
    require(end <= piece.offset + piece.size, ExitCode::unexpected, "'", member.name, "' lies in two pieces");
    const int64_t slice = layout.slice_offset(piece);
    const int64_t first = std::max(member.offset, slice), last = std::min(end, slice + layout.slice_size(piece));
    if (first >= last) break;
    return {share.narrow(0, layout.share_offset(piece) + first - slice, last - first),
            run_part(member.sizes, first - member.offset, last - first)};
  }
  return {share.narrow(0, 0, 0), run_part(member.sizes, 0, 0)};
}

}  // namespace

ParameterShards::ParameterShards(nn::ParameterSet& parameters, Comm& comm, const GradientReducer& reducer,
                                 double average_decay, std::vector<std::string> moments, const GatherOptions& options)
    : parameters_(parameters),
      comm_(comm),
      layout_(*reducer.layout()),
      gradients_(reducer.share()),
      moment_names_(std::move(moments)) {
  const at::NoGradGuard no_grad;
  std::vector<WeightGather::Unit> units = place_masters(reducer.pieces());
  require(!parts_.empty(), ExitCode::usage, "the model's ", parameters_.count(), " parameters are too few to give ",
          comm_.ranks(), " ranks a share each: use parallel.zero=0");
  if (reducer.weights_take_turns()) {
    for (WeightGather::Unit& unit : frozen_units(parameters_, comm_)) {
      frozen_shares_ += static_cast<int64_t>(unit.source.nbytes());
      units.push_back(std::move(unit));
    }
    // Backward passes complete the first group first.
    std::stable_sort(units.begin(), units.end(),
                     [](const auto& a, const auto& b) { return a.groups[0] > b.groups[0]; });
    if (!units.empty()) weights_ = std::make_unique<WeightGather>(parameters_, comm_, std::move(units), options);
  }
  parameters_.materialise();  // frozen weights that every rank has
  const at::TensorOptions floats = gradients_.options();
  for (size_t i = 0; i < moment_names_.size(); ++i) moments_.push_back(at::zeros({layout_.share()}, floats));
  moved_ = at::zeros({2}, floats.dtype(at::kDouble));
  if (average_decay <= 0) return;
  average_ = at::zeros({layout_.share()}, floats);
  ema_ = std::make_unique<optim::Ema>(master_views(), views(average_), average_decay);
}

// Every piece becomes one of whole_ or of shard_layout_. Returns what takes turns.
std::vector<WeightGather::Unit> ParameterShards::place_masters(const std::vector<GradientReducer::PieceUse>& uses) {
  const auto is_whole = [&](size_t piece) { return uses[piece].residence == Residence::whole; };
  int64_t whole = 0;
  shard_layout_.rank = layout_.rank;
  shard_layout_.ranks = layout_.ranks;
  std::vector<FlatLayout::Piece> places;  // of every piece, there
  for (size_t i = 0; i < layout_.pieces.size(); ++i) {
    int64_t& size = is_whole(i) ? whole : shard_layout_.size;
    places.push_back({.offset = size, .size = layout_.pieces[i].size});
    (is_whole(i) ? whole_pieces_ : shard_layout_.pieces).push_back(places.back());
    size += layout_.pieces[i].size;
  }
  const at::TensorOptions floats = gradients_.options();
  whole_ = at::zeros({whole}, floats);
  shard_ = at::zeros({shard_layout_.share()}, floats);

  bool gathers = false;
  std::vector<WeightGather::Unit> units;
  for (size_t i = 0; i < layout_.pieces.size(); ++i) {
    const FlatLayout::Piece &piece = layout_.pieces[i], &place = places[i];
    const int64_t begin = layout_.slice_offset(piece), end = begin + layout_.slice_size(piece);
    const int64_t own = shard_layout_.share_offset(place);
    Copies copies;
    WeightGather::Unit unit{.groups = uses[i].groups, .source = {}, .members = {}};
    if (!is_whole(i)) copies.masters = unit.source = shard_.narrow(0, own, layout_.slice_size(piece));
    for (size_t m = 0; m < layout_.members.size(); ++m) {
      const FlatLayout::Member& member = layout_.members[m];
      if (member.offset < piece.offset || member.offset >= piece.offset + piece.size) continue;
      const nn::Parameter& parameter = parameters_.all()[m];
      const int64_t size = parameter.master.numel(), offset = member.offset - piece.offset;
      // Of a master that passes read themselves: this rank's elements, and then the others' by gather().
      const bool own_alone = is_whole(i) && parameter.outlined && parameter.compute.is_same(parameter.master);
      if (is_whole(i)) {
        const at::Tensor there = whole_.narrow(0, place.offset + offset, size);
        if (const int64_t first = std::max(begin, member.offset), last = std::min(end, member.offset + size);
            own_alone && first < last) {
          parameters_.read_master(m, first - member.offset, there.narrow(0, first - member.offset, last - first));
        }
        gathers |= own_alone;
        parameters_.place_master(m, there.view(member.sizes), /*has_values=*/own_alone);
      } else {
        shard_layout_.members.push_back({.name = member.name, .sizes = member.sizes, .offset = place.offset + offset});
      }
      if (const int64_t first = std::max(begin, member.offset), last = std::min(end, member.offset + size);
          first < last) {
        Part part{
            .member = m, .share = layout_.share_offset(piece) + first - begin, .size = last - first, .master = {}};
        if (is_whole(i)) {
          part.master = whole_.narrow(0, place.offset + first - piece.offset, part.size);
        } else {
          part.master = shard_.narrow(0, own + first - begin, part.size);
          parameters_.read_master(m, first - member.offset, part.master);
        }
        parts_.push_back(part);
      }
      if (uses[i].residence == Residence::copies) {
        if (!copies.all.defined()) copies.all = at::zeros({piece.size}, parameter.compute.options());
        const at::Tensor there = copies.all.narrow(0, offset, size).view(member.sizes);
        if (parameter.outlined) {
          gathers = true;
        } else {
          there.copy_(parameter.compute);
        }
        parameters_.place_compute(m, there.variable_data());
      } else if (uses[i].residence == Residence::turns) {
        unit.dtype = parameter.compute.scalar_type();
        unit.members.push_back({m, offset});
        turning_ += size;
      }
    }
    if (uses[i].residence == Residence::copies) {
      copies.own = copies.all.narrow(0, layout_.slice_offset(piece) - piece.offset, layout_.slice_size(piece));
      copies_.push_back(std::move(copies));
    } else if (uses[i].residence == Residence::turns) {
      units.push_back(std::move(unit));
    }
  }
  if (gathers) gather();  // the others' parts of what was an outline
  return units;
}

std::vector<at::Tensor> ParameterShards::views(const at::Tensor& share) const {
  std::vector<at::Tensor> views;
  for (const Part& part : parts_) views.push_back(share.narrow(0, part.share, part.size));
  return views;
}

std::vector<at::Tensor> ParameterShards::master_views() const {
  std::vector<at::Tensor> views;
  for (const Part& part : parts_) views.push_back(part.master);
  return views;
}

optim::ParameterGroup ParameterShards::group(double weight_decay) const {
  optim::ParameterGroup group;
  for (const Part& part : parts_) group.names.push_back(layout_.members[part.member].name);
  group.params = master_views();
  group.grads = views(gradients_);
  if (ema_) group.averages = ema_->shadows();
  group.weight_decay = weight_decay;
  for (const at::Tensor& moment : moments_) group.moments.push_back(views(moment));
  return group;
}

std::vector<TensorGradients::HeldAlike> ParameterShards::held_alike() const {
  std::vector<TensorGradients::HeldAlike> held;
  for (const Part& part : parts_) {
    const nn::Parameter& parameter = parameters_.all()[part.member];
    if (!parameter.cut.whole()) continue;
    held.push_back({gradients_.narrow(0, part.share, part.size), part.master, parameter.sum_over_parts});
  }
  return held;
}

optim::GradNorm ParameterShards::global_norm(double max_norm, const optim::GradNormExtras& extras,
                                             const TensorGradients* parts) const {
  if (parts != nullptr) return norm_over_ranks({&comm_, &parts->comm()}, parts->own_norm(), max_norm, extras);
  return norm_over_ranks({&comm_}, ops::float64_norm(gradients_), max_norm, extras);
}

void ParameterShards::step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                           const at::Tensor& skip, const at::Tensor& update_ratio, const TensorGradients* parts) {
  std::vector<Comm*> axes{&comm_};
  if (parts != nullptr) {
    parts->step_own(optimizer, lr, grad_scale, skip, moved_);
    axes.push_back(&parts->comm());
  } else {
    optimizer.step(lr, grad_scale, skip, moved_);
  }
  gather();
  parameters_.refresh_compute();
  ratio_over_ranks(axes, moved_, update_ratio);
}

void ParameterShards::gather() {
  const at::NoGradGuard no_grad;
  begin_pass();
  const StepClock::Wait waiting(comm_.clock());
  std::vector<std::unique_ptr<Pending>> pending;
  for (const FlatLayout::Piece& piece : whole_pieces_) {
    const int64_t size = piece.size / comm_.ranks();
    pending.push_back(comm_.start_all_gather(whole_.narrow(0, piece.offset, piece.size),
                                             whole_.narrow(0, piece.offset + comm_.rank() * size, size)));
  }
  for (const Copies& copies : copies_) {
    copies.own.copy_(copies.masters);
    pending.push_back(comm_.start_all_gather(copies.all, copies.own));
  }
  for (const auto& operation : pending) operation->wait();
}

void ParameterShards::begin_pass() {
  if (weights_) weights_->forget();
}

ParameterShards::WeightMemory ParameterShards::weight_memory() const {
  WeightMemory memory;
  memory.masters = static_cast<int64_t>(whole_.nbytes() + shard_.nbytes());
  memory.turning = turning_;
  if (!weights_) return memory;
  memory.buffers = weights_->buffer_bytes();
  memory.frozen = frozen_shares_ * comm_.ranks();
  memory.frozen_shares = frozen_shares_;
  return memory;
}

void ParameterShards::visit_state(StateVisitor& visitor) {
  // Every rank visits all parameters, also those of which it holds nothing.
  const auto visit = [&](const std::string& before, const std::string& behind, const at::Tensor& share,
                         StateRole role) {
    for (const FlatLayout::Member& member : layout_.members) {
      Held held = held_of(layout_, member, share);
      visitor.tensor(before + member.name + behind, held.tensor, role, held.part);
    }
  };
  for (size_t i = 0; i < moments_.size(); ++i) {
    visit("optim.", "." + moment_names_[i], moments_[i], StateRole::optimizer);
  }
  if (ema_) visit("ema.", "", average_, StateRole::ema);
}

void ParameterShards::visit_weights(Stateful& task, StateVisitor& visitor) {
  struct Rest : StateVisitor {
    Rest(ParameterShards& of, StateVisitor& inner) : shards(of), out(inner) {
      std::unordered_map<std::string, const FlatLayout::Member*> sharded;
      for (const FlatLayout::Member& member : of.shard_layout_.members) sharded[member.name] = &member;
      for (const nn::Parameter& parameter : of.parameters_.all()) {
        const auto found = sharded.find(parameter.name);
        if (found != sharded.end()) members[parameter.master.unsafeGetTensorImpl()] = found->second;
      }
    }
    void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) override {
      const auto found = members.find(tensor.unsafeGetTensorImpl());
      if (found == members.end()) return out.tensor(name, tensor, role, part);
      Held held = held_of(shards.shard_layout_, *found->second, shards.shard_);
      out.tensor(name, held.tensor, role, held.part);
    }
    void integer(const std::string& name, int64_t& value) override { out.integer(name, value); }
    void real(const std::string& name, double& value) override { out.real(name, value); }

    ParameterShards& shards;
    StateVisitor& out;
    std::unordered_map<const void*, const FlatLayout::Member*> members;
  };
  Rest rest(*this, visitor);
  task.visit_state(rest);
}

}  // namespace hrm::parallel
