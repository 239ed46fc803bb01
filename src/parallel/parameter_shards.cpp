#include "hrm/parallel/parameter_shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "hrm/base/error.h"

namespace hrm::parallel {

ParameterShards::ParameterShards(nn::ParameterSet& parameters, Comm& comm, const GradientReducer& reducer,
                                 double average_decay, std::vector<std::string> moments)
    : parameters_(parameters),
      comm_(comm),
      layout_(*reducer.layout()),
      gradients_(reducer.share()),
      moment_names_(std::move(moments)) {
  for (const FlatLayout::Piece& piece : layout_.pieces) {
    const int64_t begin = layout_.slice_offset(piece), end = begin + layout_.slice_size(piece);
    for (size_t i = 0; i < layout_.members.size(); ++i) {
      const FlatLayout::Member& member = layout_.members[i];
      const int64_t size = c10::multiply_integers(member.sizes.begin(), member.sizes.end());
      const int64_t first = std::max(begin, member.offset), last = std::min(end, member.offset + size);
      if (first >= last) continue;
      parts_.push_back({i, first, layout_.share_offset(piece) + first - begin, last - first});
    }
  }
  require(!parts_.empty(), ExitCode::usage, "the model's ", parameters_.count(), " parameters are too few to give ",
          comm_.ranks(), " ranks a share each: use parallel.zero=0");
  const at::TensorOptions options = gradients_.options();
  for (size_t i = 0; i < moment_names_.size(); ++i) moments_.push_back(at::zeros({layout_.share()}, options));
  moved_ = at::zeros({2}, options.dtype(at::kDouble));
  if (average_decay <= 0) return;
  average_ = at::zeros({layout_.share()}, options);
  ema_ = std::make_unique<optim::Ema>(master_views(), views(average_), average_decay);
}

std::vector<at::Tensor> ParameterShards::views(const at::Tensor& share) const {
  std::vector<at::Tensor> views;
  for (const Part& part : parts_) views.push_back(share.narrow(0, part.share, part.size));
  return views;
}

std::vector<at::Tensor> ParameterShards::master_views() const {
  std::vector<at::Tensor> views;
  for (const Part& part : parts_) views.push_back(parameters_.flat_master().narrow(0, part.flat, part.size));
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

optim::GradNorm ParameterShards::global_norm(double max_norm, const optim::GradNormExtras& extras) const {
  // The norm of the ranks' norms. Each is two numbers whose squares add up to the norm's square in float64. One number
  // would be rounded, and clipping that differs in its last bit makes a training diverge from one without shards.
  const at::Tensor norm = at::linalg_vector_norm(gradients_, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
  const at::Tensor most = (norm * (1 - 0x1p-23)).to(at::kFloat);  // not above the norm
  const at::Tensor rest = at::sqrt((norm - most) * (norm + most)).to(at::kFloat);
  const at::Tensor own = at::stack({most, at::where(at::isfinite(most), rest, at::zeros_like(rest))});
  const at::Tensor all = at::empty({2 * comm_.ranks()}, own.options());
  {
    const StepClock::Wait waiting(comm_.clock());
    comm_.all_gather(all, own);
  }
  return optim::global_norm(all, max_norm, 2, extras);
}

void ParameterShards::step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                           const at::Tensor& skip, const at::Tensor& update_ratio) {
  optimizer.step(lr, grad_scale, skip, moved_);
  gather();
  parameters_.refresh_compute();
  comm_.all_reduce_in_step(moved_);
  // Both are 0 for a skip.
  const at::Tensor ratio = at::sqrt(moved_.select(0, 0) / moved_.select(0, 1));
  at::Tensor(update_ratio).copy_(at::where(moved_.select(0, 1) > 0, ratio, at::zeros_like(ratio)));
}

void ParameterShards::gather() {
  const at::NoGradGuard no_grad;
  const at::Tensor& flat = parameters_.flat_master();
  const StepClock::Wait waiting(comm_.clock());
  std::vector<std::unique_ptr<Pending>> pending;
  for (const FlatLayout::Piece& piece : layout_.pieces) {
    pending.push_back(comm_.start_all_gather(flat.narrow(0, piece.offset, piece.size),
                                             flat.narrow(0, layout_.slice_offset(piece), layout_.slice_size(piece))));
  }
  for (const auto& operation : pending) operation->wait();
}

void ParameterShards::visit_state(StateVisitor& visitor) {
  // Every rank visits all parameters, also those of which it holds nothing.
  const auto visit = [&](const std::string& before, const std::string& behind, const at::Tensor& share,
                         StateRole role) {
    for (size_t i = 0; i < layout_.members.size(); ++i) {
      const FlatLayout::Member& member = layout_.members[i];
      StatePart part = run_part(member.sizes, 0, 0);
      at::Tensor held = share.narrow(0, 0, 0);
      for (const Part& own : parts_) {
        if (own.member != i) continue;
        require(held.numel() == 0, ExitCode::unexpected, "'", member.name, "' has two pieces in a share");
        part = run_part(member.sizes, own.flat - member.offset, own.size);
        held = share.narrow(0, own.share, own.size);
      }
      visitor.tensor(before + member.name + behind, held, role, part);
    }
  };
  for (size_t i = 0; i < moments_.size(); ++i) {
    visit("optim.", "." + moment_names_[i], moments_[i], StateRole::optimizer);
  }
  if (ema_) visit("ema.", "", average_, StateRole::ema);
}

}  // namespace hrm::parallel
