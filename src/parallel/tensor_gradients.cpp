#include "hrm/parallel/tensor_gradients.h"

#include <ATen/ATen.h>

#include <tuple>

#include "hrm/base/error.h"

namespace hrm::parallel {

TensorGradients::TensorGradients(nn::ParameterSet& parameters, Comm& comm) : parameters_(parameters), comm_(comm) {
  require(parameters.flat_grad().defined(), ExitCode::unexpected,
          "the gradients of a model that is cut must be in the buffer of its parameter set");
  int64_t size = 0, size_to_sum = 0;
  for (const bool summed : {true, false}) {
    for (const nn::Parameter& parameter : parameters.all()) {
      if (!parameter.cut.whole() || parameter.sum_over_parts != summed) continue;
      gradients_.push_back(parameter.master.grad());
      size += parameter.master.numel();
    }
    if (summed) std::tie(summed_, size_to_sum) = std::tuple(gradients_.size(), size);
  }
  joined_ = at::zeros({size}, parameters.flat_grad().options());
  moved_ = at::zeros({2}, joined_.options().dtype(at::kDouble));
  to_sum_ = joined_.narrow(0, 0, size_to_sum);
  int64_t offset = 0;
  for (const at::Tensor& gradient : gradients_) {
    places_.push_back(joined_.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
    offset += gradient.numel();
  }
}

void TensorGradients::sum() {
  if (gradients_.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(places_, gradients_);
  if (summed_ == 0) return;
  comm_.all_reduce_in_step(to_sum_);
  at::_foreach_copy_(at::TensorList(gradients_).slice(0, summed_), at::TensorList(places_).slice(0, summed_));
}

optim::GradNorm TensorGradients::global_norm(double max_norm, const optim::GradNormExtras& extras) const {
  const auto norm_of = [](const at::Tensor& t) {
    return at::linalg_vector_norm(t, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
  };
  at::Tensor norm = norm_of(parameters_.flat_grad());
  if (!comm_.main()) norm = (norm.square() - norm_of(joined_).square()).clamp_min(0).sqrt();
  // As ParameterShards::global_norm: two numbers whose squares add up to the norm's square in float64.
  const at::Tensor most = (norm * (1 - 0x1p-23)).to(at::kFloat);
  const at::Tensor rest = at::sqrt((norm - most) * (norm + most)).to(at::kFloat);
  const at::Tensor own = at::stack({most, at::where(at::isfinite(most), rest, at::zeros_like(rest))});
  const at::Tensor all = at::empty({2 * comm_.ranks()}, own.options());
  {
    const StepClock::Wait waiting(comm_.clock());
    comm_.all_gather(all, own);
  }
  return optim::global_norm(all, max_norm, 2, extras);
}

void TensorGradients::step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                           const at::Tensor& skip, const at::Tensor& update_ratio) const {
  optimizer.step(lr, grad_scale, skip, moved_);
  comm_.all_reduce_in_step(moved_);
  // Both are 0 for a skip.
  const at::Tensor ratio = at::sqrt(moved_.select(0, 0) / moved_.select(0, 1));
  at::Tensor(update_ratio).copy_(at::where(moved_.select(0, 1) > 0, ratio, at::zeros_like(ratio)));
}

}  // namespace hrm::parallel
