#include "hrm/runtime/loss_scaler.h"

#include <ATen/ATen.h>

#include <limits>

namespace hrm {

LossScaler::LossScaler(double initial, int64_t growth_interval, at::Device device)
    : scale_(at::full({}, initial, at::device(device))),
      finite_steps_(at::zeros({}, at::device(device).dtype(at::kInt))),
      skipped_(at::zeros({}, at::device(device))),
      growth_interval_(growth_interval > 0 ? growth_interval : std::numeric_limits<int>::max()) {}

void LossScaler::update(const at::Tensor& nonfinite) {
  const at::NoGradGuard no_grad;
  skipped_.add_(nonfinite);
  at::_amp_update_scale_(scale_, finite_steps_, nonfinite, /*scale_growth_factor=*/2.0, /*scale_backoff_factor=*/0.5,
                         growth_interval_);
}

at::Tensor LossScaler::hopeless() const {
  return scale_.lt(0x1p-20).to(at::kFloat);
}

void LossScaler::visit_state(StateVisitor& visitor) {
  visitor.tensor("loss_scale.scale", scale_, StateRole::optimizer);
  visitor.tensor("loss_scale.finite_steps", finite_steps_, StateRole::optimizer);
  visitor.tensor("loss_scale.skipped", skipped_, StateRole::optimizer);
}

}  // namespace hrm
