#pragma once
// Dynamic loss scaling for fp16: gradients that fp16 would flush to zero are computed from a larger loss (Micikevicius
// et al. 2018, section 3.2). All of it happens on the device, so that a captured step can hold it.

#include <ATen/core/Tensor.h>

#include "hrm/state/registry.h"

namespace hrm {

class LossScaler : public Stateful {
 public:
  // growth_interval 0 = the scale never grows.
  LossScaler(double initial, int64_t growth_interval, at::Device device);

  // What the loss is multiplied by, and the gradients divided by: 0-dim float32 on the device, at one address.
  const at::Tensor& scale() const { return scale_; }

  // After a step: `nonfinite` is 1 if its gradient norm was infinite or NaN, else 0 (0-dim float32). Halves the scale,
  // or counts the step and doubles the scale every growth_interval finite steps. No host synchronisation.
  void update(const at::Tensor& nonfinite);

  // 1 where no scale helps any more (it has fallen below 2^-20), otherwise 0: 0-dim float32. The gradients are infinite
  // or NaN for another reason than the range of fp16.
  at::Tensor hopeless() const;

  // "loss_scale.scale", "loss_scale.finite_steps", "loss_scale.skipped" (steps left out so far); role optimizer.
  void visit_state(StateVisitor& visitor) override;

 private:
  at::Tensor scale_, finite_steps_, skipped_;
  int64_t growth_interval_;
};

}  // namespace hrm
