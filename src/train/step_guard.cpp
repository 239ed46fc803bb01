#include "train/step_guard.h"

#include <ATen/ATen.h>

namespace hrm::train {

StepGuard::StepGuard(const config::TrainConfig& config, at::Device device)
    : most_in_a_row_(static_cast<double>(config.max_nonfinite_steps)), spike_score_(config.spike_score) {
  const auto floats = at::device(device).dtype(at::kFloat);
  in_a_row_ = at::zeros({}, floats);
  spike_ = at::zeros({}, floats);
  if (spike_score_ <= 0) return;
  losses_ = at::zeros({config.spike_window}, floats.dtype(at::kDouble));
  known_ = at::zeros({}, floats.dtype(at::kLong));
}

at::Tensor StepGuard::give_up() const {
  return in_a_row_.ge(most_in_a_row_).to(at::kFloat);
}

at::Tensor StepGuard::skip(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  if (spike_score_ <= 0) return give_up();
  const at::Tensor mean = losses_.mean(), deviation = losses_.std(/*unbiased=*/true);
  const at::Tensor far = (loss - mean).gt(deviation * spike_score_);
  spike_.copy_(far.logical_and(known_.ge(losses_.numel())));
  return at::maximum(spike_, give_up());
}

void StepGuard::update(const at::Tensor& loss, const at::Tensor& nonfinite) {
  const at::NoGradGuard no_grad;
  // A count that reached its end stays there, although the gradients of steps that are skipped may be finite again.
  in_a_row_.copy_(at::where(give_up().ne(0), in_a_row_, (in_a_row_ + 1) * nonfinite));
  if (spike_score_ <= 0) return;
  // Spikes go into the ring, too: where the loss has risen for good, it becomes the new normal.
  const at::Tensor finite = at::isfinite(loss);
  const at::Tensor place = known_.remainder(losses_.numel()).view({1});
  losses_.index_copy_(0, place, at::where(finite, loss, losses_.index_select(0, place).squeeze(0)).view({1}));
  known_.add_(finite);
}

void StepGuard::visit_state(StateVisitor& visitor) {
  visitor.tensor("guard.nonfinite_in_a_row", in_a_row_, StateRole::loop);
  if (spike_score_ <= 0) return;
  visitor.tensor("guard.losses", losses_, StateRole::loop);
  visitor.tensor("guard.losses_known", known_, StateRole::loop);
}

}  // namespace hrm::train
