#include "hrm/parallel/tensor_gradients.h"

#include <ATen/ATen.h>

#include <tuple>

#include "hrm/base/error.h"
#include "hrm/ops/grad_norm.h"
#include "parallel/over_ranks.h"

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
  at::Tensor norm = ops::float64_norm(parameters_.flat_grad());
  if (!comm_.main() && joined_.numel() > 0) {
    norm = (norm.square() - ops::float64_norm(joined_).square()).clamp_min(0).sqrt();
  }
  return norm_over_ranks(comm_, norm, max_norm, extras);
}

void TensorGradients::step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale,
                           const at::Tensor& skip, const at::Tensor& update_ratio) const {
  optimizer.step(lr, grad_scale, skip, moved_);
  ratio_over_ranks(comm_, moved_, update_ratio);
}

}  // namespace hrm::parallel
