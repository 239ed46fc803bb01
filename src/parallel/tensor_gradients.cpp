#include "hrm/parallel/tensor_gradients.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/grad_norm.h"
#include "parallel/over_ranks.h"

namespace hrm::parallel {
namespace {

at::Tensor norm_of(const at::Tensor& t) {
  return t.numel() == 0 ? at::zeros({}, t.options().dtype(at::kDouble)) : ops::float64_norm(t);
}

std::vector<TensorGradients::HeldAlike> held_alike_of(const nn::ParameterSet& parameters) {
  std::vector<TensorGradients::HeldAlike> held;
  for (const nn::Parameter& parameter : parameters.all()) {
    if (!parameter.cut.whole()) continue;
    held.push_back({parameter.master.grad(), parameter.master.detach(), parameter.sum_over_parts});
  }
  return held;
}

// Views of one vector, of the sizes of `like`.
std::vector<at::Tensor> places_in(const at::Tensor& joined, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> places;
  int64_t offset = 0;
  for (const at::Tensor& tensor : like) {
    places.push_back(joined.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
  return places;
}

}  // namespace

TensorGradients::TensorGradients(nn::ParameterSet& parameters, Comm& comm) : comm_(comm), all_(parameters.flat_grad()) {
  require(all_.defined(), ExitCode::unexpected,
          "the gradients of a model that is cut must be in the buffer of its parameter set");
  take(held_alike_of(parameters));
}

TensorGradients::TensorGradients(const at::Tensor& all, const std::vector<HeldAlike>& held_alike, Comm& comm)
    : comm_(comm), all_(all) {
  take(held_alike);
}

void TensorGradients::take(const std::vector<HeldAlike>& held_alike) {
  int64_t size = 0, size_to_sum = 0;
  for (const bool summed : {true, false}) {
    for (const HeldAlike& held : held_alike) {
      if (held.sum != summed) continue;
      gradients_.push_back(held.gradient);
      masters_.push_back(held.master);
      size += held.gradient.numel();
    }
    if (!summed) continue;
    summed_ = gradients_.size();
    size_to_sum = size;
  }
  joined_ = at::zeros({size}, all_.options());
  to_sum_ = joined_.narrow(0, 0, size_to_sum);
  places_ = places_in(joined_, gradients_);
  moved_ = at::zeros({2}, joined_.options().dtype(at::kDouble));
  if (comm_.main()) return;
  before_ = at::zeros_like(joined_);
  change_ = at::zeros_like(joined_);
  before_places_ = places_in(before_, masters_);
  change_places_ = places_in(change_, masters_);
}

void TensorGradients::sum() {
  if (gradients_.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(places_, gradients_);
  if (summed_ == 0) return;
  comm_.all_reduce_in_step(to_sum_);
  at::_foreach_copy_(at::TensorList(gradients_).slice(0, summed_), at::TensorList(places_).slice(0, summed_));
}

at::Tensor TensorGradients::own_norm() const {
  const at::Tensor norm = norm_of(all_);
  if (comm_.main()) return norm;
  return (norm.square() - norm_of(joined_).square()).clamp_min(0).sqrt();
}

optim::GradNorm TensorGradients::global_norm(double max_norm, const optim::GradNormExtras& extras) const {
  return norm_over_ranks({&comm_}, own_norm(), max_norm, extras);
}

void TensorGradients::step_own(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                               const at::Tensor& skip, const at::Tensor& moved) const {
  const bool counted_elsewhere = !comm_.main() && !masters_.empty();
  const at::NoGradGuard no_grad;
  if (counted_elsewhere) at::_foreach_copy_(before_places_, masters_);
  optimizer.step(lr, grad_scale, skip, moved);
  if (!counted_elsewhere) return;
  at::_foreach_copy_(change_places_, masters_);
  const at::Tensor change = norm_of(change_ - before_), before = norm_of(before_);
  // Both are 0 for a step that was left out, and stay so.
  at::Tensor(moved).sub_(at::stack({change, before}).square()).clamp_min_(0);
}

void TensorGradients::step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                           const at::Tensor& skip, const at::Tensor& update_ratio) const {
  step_own(optimizer, lr, grad_scale, skip, moved_);
  ratio_over_ranks({&comm_}, moved_, update_ratio);
}

}  // namespace hrm::parallel
